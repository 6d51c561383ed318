//! Six small graphs over the last minutes, with what they show now.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::Line;
use ratatui::widgets::Sparkline;
use weightfs::units::ByteSize;

use super::render::Theme;
use super::sample::Sample;
use super::state::State;
use crate::output::figures::rate;

/// Of a graph and the line above it, twice, on a terminal of this height; none where that leaves no room for files.
pub fn height(terminal: u16) -> u16 {
    match terminal {
        ..16 => 0,
        16..24 => 4,
        24..40 => 6,
        _ => 12,
    }
}

struct Graph {
    title: String,
    value: fn(&Sample) -> u64,
    /// What is the full height, where that does not follow from what is shown.
    full: Option<u64>,
    colour: Color,
}

pub fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let thirds = [Constraint::Ratio(1, 3); 3];
    let rows: [Rect; 2] = Layout::vertical([Constraint::Ratio(1, 2); 2]).areas(area);
    let places = rows.map(|row| Layout::horizontal(thirds).spacing(2).areas::<3>(row));
    for (graph, place) in graphs(state).iter().zip(places.iter().flatten()) {
        one(frame, *place, graph, state, theme);
    }
}

fn graphs(state: &State) -> [Graph; 6] {
    let now = state.samples.last().copied().unwrap_or_default();
    let limit = state.status.as_ref().map(|status| status.ram.limit_bytes.max(1));
    let hits = now.hits.map_or_else(|| "–".to_owned(), |hits| format!("{:.0} %", (hits * 100.0).floor()));
    let stalls = now.stalls.map_or_else(|| "unknown".to_owned(), |percent| format!("{percent:.0} % of the time"));
    [
        Graph {
            title: format!("Served {}", rate(now.served as u64)),
            value: |sample| sample.served as u64,
            full: None,
            colour: Color::Green,
        },
        Graph {
            title: format!("From RAM {hits}, {:.0} opens/s", now.passthrough),
            value: |sample| sample.hits.map_or(0, |hits| (hits * 100.0) as u64),
            full: Some(100),
            colour: Color::Green,
        },
        Graph {
            title: format!("From sources {}", rate(now.source as u64)),
            value: |sample| sample.source as u64,
            full: None,
            colour: Color::Cyan,
        },
        Graph {
            title: format!("In RAM {}", ByteSize(now.resident)),
            value: |sample| sample.resident,
            full: limit,
            colour: Color::Green,
        },
        Graph {
            title: format!("Budget {}", ByteSize(now.budget)),
            value: |sample| sample.budget,
            full: limit,
            colour: Color::Blue,
        },
        Graph {
            title: format!("Stalls {stalls}"),
            value: |sample| sample.stalls.map_or(0, |percent| percent as u64),
            full: Some(100),
            colour: Color::Yellow,
        },
    ]
}

fn one(frame: &mut Frame<'_>, area: Rect, graph: &Graph, state: &State, theme: Theme) {
    let [title, curve] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    frame.render_widget(Line::raw(graph.title.as_str()), title);
    let width = usize::from(curve.width);
    let values = state.samples.recent(width, graph.value);
    // The newest is at the right from the start.
    let padded: Vec<u64> = std::iter::repeat_n(0, width - values.len()).chain(values).collect();
    let mut line = Sparkline::default().data(&padded).style(theme.ink(graph.colour));
    if let Some(full) = graph.full {
        line = line.max(full);
    }
    frame.render_widget(line, curve);
}
