//! Draws the state: from the top down the mounts, the RAM, graphs, fills, files, and what keys do.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use weightfs::control::{FileStatus, FillStatus, Status};
use weightfs::units::ByteSize;

use super::graphs;
use super::state::{Link, Mode, State};
use crate::output::bar::{RESIDENT, bar};
use crate::output::figures::{files as count_files, percent, plain, rate, shown, tail, time};
use crate::output::files::{file_bar, marks};
use crate::output::human::{ram_bar, ram_figures};

/// The most fills that are shown.
const MOST_FILLS: usize = 4;

/// From so many columns on, marks are words.
const WIDE: u16 = 110;

const HELP: &[(&str, &str)] = &[
    ("↑ ↓ j k", "select a file; PgUp, PgDn, g and G go further"),
    ("p", "pin the file, or take its pins back"),
    ("f", "prefetch it: read it into RAM now"),
    ("e", "evict it: free what it takes of the RAM"),
    ("s", "sort by what is in RAM, last use, size, name"),
    ("/", "show only names with these letters; Esc shows all"),
    ("a", "all files, or only those in RAM"),
    ("q", "quit, as Ctrl-C does"),
    ("", ""),
    ("█ ▓ ▒ ░", "in RAM, pinned, on its way or held, not there"),
    ("P U G F", "pinned, in use, in a GPU, filling"),
];

/// Colours, or none where NO_COLOR asks for that.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    pub colour: bool,
}

impl Theme {
    pub fn ink(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }
}

/// Gives the number of rows of the list that are seen.
pub fn draw(frame: &mut Frame<'_>, state: &State, theme: Theme) -> usize {
    let area = frame.area();
    let fills = state.status.as_ref().map_or(0, |status| status.fills.len().min(MOST_FILLS)) as u16;
    let graphs = graphs::height(area.height);
    let [title, ram, graph, filling, head, list, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(graphs),
        Constraint::Length(fills),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(title_line(state, theme, title.width), title);
    if let Some(status) = &state.status {
        frame.render_widget(Paragraph::new(ram_lines(status, theme, ram.width)), ram);
        let lines: Vec<Line<'_>> =
            status.fills.iter().take(MOST_FILLS).map(|fill| fill_line(fill, theme, filling.width)).collect();
        frame.render_widget(Paragraph::new(lines), filling);
    }
    if graphs > 0 {
        graphs::draw(frame, graph, state, theme);
    }
    frame.render_widget(head_line(state, head.width), head);
    draw_list(frame, list, state, theme);
    frame.render_widget(keys_line(state, theme), keys);
    if state.mode == Mode::Help {
        draw_help(frame, area, theme);
    }
    usize::from(list.height)
}

fn title_line(state: &State, theme: Theme, width: u16) -> Line<'static> {
    let link = match &state.link {
        Link::Connecting => Span::styled("asking the daemon …".to_owned(), theme.dim()),
        Link::Live => Span::styled("live".to_owned(), theme.ink(Color::Green)),
        Link::Lost(why, since) => {
            let text = format!("no answer for {}: {}", time(state.now - since), plain(why));
            Span::styled(text, theme.ink(Color::Red))
        }
    };
    let mounts = state.status.as_ref().map_or_else(String::new, |status| {
        let names: Vec<String> = status.mounts.iter().map(|mount| shown(&mount.mountpoint)).collect();
        let restarts = if status.worker.restarts > 0 {
            format!(", restarted {}×", status.worker.restarts)
        } else {
            String::new()
        };
        format!("{}  up {}{restarts}  ", tail(&names.join(", "), usize::from(width / 2)), time(status.uptime_seconds))
    });
    let name = Span::styled("weightfs  ", Style::new().add_modifier(Modifier::BOLD));
    Line::from(vec![name, Span::raw(mounts), link])
}

fn ram_lines(status: &Status, theme: Theme, width: u16) -> Vec<Line<'static>> {
    let ram = &status.ram;
    let figures = ram_figures(ram);
    let cells = u64::from(width).saturating_sub(figures.chars().count() as u64 + 7).clamp(10, 120);
    let over = ram.resident_bytes.saturating_add(ram.client_held_bytes) > ram.high_watermark_bytes;
    let colour = if over { Color::Yellow } else { Color::Green };
    let first = Line::from(vec![
        Span::raw("RAM  "),
        Span::styled(ram_bar(ram, cells), theme.ink(colour)),
        Span::raw(format!("  {figures}")),
    ]);
    let mut facts = vec![format!("{} pinned", ByteSize(ram.pinned_bytes))];
    if ram.client_held_bytes > 0 {
        facts.push(format!("{} held", ByteSize(ram.client_held_bytes)));
    }
    let pressure = &status.pressure;
    facts.push(format!(
        "{} free for others (reserve {})",
        ByteSize(pressure.mem_available_bytes),
        ByteSize(pressure.reserve_bytes)
    ));
    let mut facts = format!("     {}", facts.join(", "));
    let reason = format!(", {}", plain(&ram.budget_reason));
    let room = usize::from(width).saturating_sub(facts.chars().count());
    if ram.budget_bytes < ram.limit_bytes && reason.chars().count() <= room {
        facts += &reason;
    }
    vec![first, Line::styled(facts, theme.dim())]
}

fn fill_line(fill: &FillStatus, theme: Theme, width: u16) -> Line<'static> {
    let there = percent(fill.bytes_done, fill.bytes_total).unwrap_or(0);
    let facts = format!("{there:>3} %  {:>12}  {:<9}  ", rate(fill.bytes_per_second), plain(&fill.class));
    let cells = bar(&[(fill.bytes_done, RESIDENT)], fill.bytes_total, 10);
    let room = usize::from(width).saturating_sub(facts.chars().count() + 18);
    Line::from(vec![
        Span::raw("Fill  "),
        Span::styled(cells, theme.ink(Color::Cyan)),
        Span::raw(format!("  {facts}{}", tail(&shown(&fill.path), room))),
    ])
}

/// The widths of the bar and of the marks, on a terminal of this width.
fn columns(width: u16) -> (u64, usize) {
    if width >= WIDE { (20, 36) } else { (8, 4) }
}

fn row(bar: Span<'static>, cells: [&str; 4], name: &str, width: u16) -> Line<'static> {
    let [resident, size, used, marks] = cells;
    let marks_width = columns(width).1;
    let figures = format!(" {resident:>9} {size:>9} {used:>6}  {:<marks_width$} ", tail(marks, marks_width));
    let taken = bar.content.chars().count() + figures.chars().count();
    Line::from(vec![bar, Span::raw(figures), Span::raw(tail(name, usize::from(width).saturating_sub(taken)))])
}

fn head_line(state: &State, width: u16) -> Line<'static> {
    let cells = columns(width).0 as usize;
    let totals = &state.totals;
    let mut name = format!(
        "{}, {} of {}",
        count_files(totals.files),
        ByteSize(totals.resident_bytes),
        ByteSize(totals.size_bytes)
    );
    if !state.filter.is_empty() {
        name = format!("names with '{}'", plain(&state.filter));
    }
    let bar = Span::raw(format!("{:<cells$}", ""));
    row(bar, ["IN RAM", "SIZE", "USED", ""], &name, width).style(Style::new().add_modifier(Modifier::REVERSED))
}

fn draw_list(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let (cells, _) = columns(area.width);
    let rows = state.rows();
    let seen = rows.iter().skip(state.offset).take(usize::from(area.height));
    let lines: Vec<Line<'_>> = seen
        .map(|file| {
            let name = match state.base().and_then(|base| file.path.strip_prefix(base).ok()) {
                Some(below) => shown(below),
                None => shown(&file.path),
            };
            let marks = if area.width >= WIDE { marks(file) } else { letters(file) };
            let used = file.unused_seconds.map_or_else(|| "–".to_owned(), time);
            let (resident, size) = (ByteSize(file.resident_bytes).to_string(), ByteSize(file.size_bytes).to_string());
            let bar = Span::styled(file_bar(file, cells), theme.ink(Color::Green));
            let line = row(bar, [&resident, &size, &used, &marks], &name, area.width);
            let selected = state.selected.as_deref() == Some(&file.path);
            if selected { line.style(Style::new().add_modifier(Modifier::REVERSED)) } else { line }
        })
        .collect();
    if lines.is_empty() {
        let why = match &state.link {
            Link::Connecting => "",
            _ if !state.filter.is_empty() => "no name has these letters; Esc shows all",
            _ if state.resident_only => "nothing is in RAM; 'a' shows all files",
            _ => "no model files of 1 MiB or more",
        };
        frame.render_widget(Line::styled(why, theme.dim()), area);
    }
    frame.render_widget(Paragraph::new(lines), area);
}

/// The marks in four letters.
fn letters(file: &FileStatus) -> String {
    [(file.pinned_bytes > 0, 'P'), (file.in_use, 'U'), (!file.in_vram.is_empty(), 'G'), (file.filling_bytes > 0, 'F')]
        .map(|(is, letter)| if is { letter } else { ' ' })
        .iter()
        .collect()
}

fn keys_line(state: &State, theme: Theme) -> Line<'static> {
    if state.mode == Mode::Filter {
        return Line::from(format!("/{}█  Enter keeps it, Esc clears it", plain(&state.filter)));
    }
    if let Some(word) = &state.word {
        let colour = if word.failed { Color::Red } else { Color::Green };
        return Line::styled(plain(&word.text), theme.ink(colour));
    }
    let shown = if state.resident_only { "all" } else { "in RAM" };
    let text =
        format!("p pin  f prefetch  e evict  s sort: {}  / filter  a {shown}  ? help  q quit", state.sort.name());
    Line::styled(text, theme.dim())
}

fn draw_help(frame: &mut Frame<'_>, area: Rect, theme: Theme) {
    let lines: Vec<Line<'_>> = HELP.iter().map(|(key, what)| Line::from(format!(" {key:<9} {what}"))).collect();
    let (width, height) = (64.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let place = Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" Keys; any key goes back ").border_style(theme.dim());
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
