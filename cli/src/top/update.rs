//! What changes the state, and what follows from it.

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use weightfs::control::{FileStatus, Files, History, Status};

use super::state::{Mode, State};
use crate::output::figures::shown;

/// What comes from the terminal and from the daemon.
#[derive(Clone, Debug)]
pub enum Input {
    Key(KeyEvent),
    Status(Box<Status>),
    Files(Box<Files>),
    History(Box<History>),
    /// The daemon does not answer.
    Lost(String),
    Done(String),
    Failed(String),
    /// So many seconds have passed since the start.
    Time(f64),
    /// So many rows of the list are seen.
    Page(usize),
}

/// What is to be done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Quit,
    Ask(Action),
    /// List only files of which something is in RAM, or all.
    List {
        resident_only: bool,
    },
}

/// What the daemon is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Pin(PathBuf),
    Unpin(PathBuf),
    Prefetch(PathBuf),
    Evict(PathBuf),
}

pub fn update(state: &mut State, input: Input) -> Option<Effect> {
    match input {
        Input::Key(key) if key.kind == KeyEventKind::Release => None,
        Input::Key(key) => match (state.mode, key.code) {
            (_, KeyCode::Char('c')) if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Effect::Quit),
            (Mode::Normal, code) => normal(state, code),
            (Mode::Filter, code) => filter(state, code),
            (Mode::Help, _) => {
                state.mode = Mode::Normal;
                None
            }
        },
        Input::Status(status) => {
            state.set_status(*status);
            None
        }
        Input::Files(files) => {
            state.set_files(*files);
            None
        }
        Input::History(history) => {
            state.samples.begin(&history);
            None
        }
        Input::Lost(why) => {
            state.lose(why);
            None
        }
        Input::Done(words) => {
            state.say(words, false);
            None
        }
        Input::Failed(words) => {
            state.say(words, true);
            None
        }
        Input::Time(now) => {
            state.pass(now);
            None
        }
        Input::Page(rows) => {
            state.page = rows;
            state.keep_in_view();
            None
        }
    }
}

fn normal(state: &mut State, code: KeyCode) -> Option<Effect> {
    let page = state.page.max(1) as isize;
    match code {
        KeyCode::Char('q') => return Some(Effect::Quit),
        KeyCode::Up | KeyCode::Char('k') => state.step(-1),
        KeyCode::Down | KeyCode::Char('j') => state.step(1),
        KeyCode::PageUp => state.step(-page),
        KeyCode::PageDown => state.step(page),
        KeyCode::Home | KeyCode::Char('g') => state.step(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => state.step(isize::MAX),
        KeyCode::Char('s') => {
            state.sort = state.sort.next();
            state.keep_in_view();
        }
        KeyCode::Char('/') => state.mode = Mode::Filter,
        KeyCode::Char('?' | 'h') => state.mode = Mode::Help,
        KeyCode::Char('a') => {
            state.resident_only = !state.resident_only;
            return Some(Effect::List { resident_only: state.resident_only });
        }
        KeyCode::Esc => {
            state.filter.clear();
            state.word = None;
            state.keep_in_view();
        }
        KeyCode::Char('p') => {
            return ask(state, |file| if file.pinned_bytes > 0 { Action::Unpin } else { Action::Pin });
        }
        KeyCode::Char('f') => return ask(state, |_| Action::Prefetch),
        KeyCode::Char('e') => return ask(state, |_| Action::Evict),
        _ => {}
    }
    None
}

fn ask(state: &mut State, action: impl Fn(&FileStatus) -> fn(PathBuf) -> Action) -> Option<Effect> {
    let Some(file) = state.selection() else {
        state.say("select a file first, with the arrows".to_owned(), true);
        return None;
    };
    let action = action(file)(file.path.clone());
    state.say(words(&action), false);
    Some(Effect::Ask(action))
}

/// What is said while it goes on.
fn words(action: &Action) -> String {
    match action {
        Action::Pin(path) => format!("pinning {} …", shown(path)),
        Action::Unpin(path) => format!("unpinning {} …", shown(path)),
        Action::Prefetch(path) => format!("prefetching {} …", shown(path)),
        Action::Evict(path) => format!("evicting {} …", shown(path)),
    }
}

fn filter(state: &mut State, code: KeyCode) -> Option<Effect> {
    match code {
        KeyCode::Char(c) => state.filter.extend(c.to_lowercase()),
        KeyCode::Backspace => _ = state.filter.pop(),
        KeyCode::Enter => state.mode = Mode::Normal,
        KeyCode::Esc => {
            state.filter.clear();
            state.mode = Mode::Normal;
        }
        _ => {}
    }
    state.keep_in_view();
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::files::examples::file;
    use crate::top::state::{Link, Sort};
    use weightfs::control::Totals;

    fn listed() -> State {
        let mut state = State { page: 2, ..State::default() };
        let pinned = FileStatus { pinned_bytes: 10, ..file("/m/b", 10, 10) };
        let files = vec![file("/m/a", 30, 0), pinned, file("/m/c", 20, 5)];
        let files = Files { files, next: None, totals: Totals::default() };
        update(&mut state, Input::Files(Box::new(files)));
        state
    }

    fn press(state: &mut State, keys: &str) -> Vec<Effect> {
        let key = |c| match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        };
        keys.chars().filter_map(|c| update(state, Input::Key(KeyEvent::new(key(c), KeyModifiers::NONE)))).collect()
    }

    fn names(state: &State) -> Vec<&str> {
        state.rows().iter().map(|file| file.path.to_str().unwrap()).collect()
    }

    #[test]
    fn the_order_goes_round() {
        let mut state = listed();
        assert_eq!(names(&state), ["/m/b", "/m/c", "/m/a"]);
        press(&mut state, "ss");
        assert_eq!((state.sort, names(&state)), (Sort::Size, vec!["/m/a", "/m/c", "/m/b"]));
        press(&mut state, "s");
        assert_eq!(names(&state), ["/m/a", "/m/b", "/m/c"]);
    }

    #[test]
    fn the_selection_stays_with_its_file_and_in_view() {
        let mut state = listed();
        press(&mut state, "j");
        assert_eq!(state.selected.as_deref(), Some("/m/b".as_ref()));
        press(&mut state, "G");
        assert_eq!((state.selected.as_deref(), state.offset), (Some("/m/a".as_ref()), 1));
        press(&mut state, "sss");
        assert_eq!((state.selected.as_deref(), state.offset), (Some("/m/a".as_ref()), 0));
        press(&mut state, "g");
        assert_eq!(state.offset, 0);
    }

    #[test]
    fn keys_ask_for_what_is_selected() {
        let mut state = listed();
        assert!(press(&mut state, "p").is_empty());
        assert!(state.word.as_ref().is_some_and(|word| word.failed));
        assert_eq!(press(&mut state, "jp"), [Effect::Ask(Action::Unpin("/m/b".into()))]);
        assert_eq!(
            press(&mut state, "jpfe"),
            ["Pin", "Prefetch", "Evict"].map(|name| {
                let path = PathBuf::from("/m/c");
                Effect::Ask(match name {
                    "Pin" => Action::Pin(path),
                    "Prefetch" => Action::Prefetch(path),
                    _ => Action::Evict(path),
                })
            })
        );
        assert_eq!(press(&mut state, "a"), [Effect::List { resident_only: true }]);
        assert_eq!(press(&mut state, "q"), [Effect::Quit]);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(update(&mut state, Input::Key(interrupt)), Some(Effect::Quit));
    }

    #[test]
    fn a_filter_is_written_kept_and_cleared() {
        let mut state = listed();
        // Letters are text now, not commands.
        assert!(press(&mut state, "/M/Cq\x08\n").is_empty());
        assert_eq!((state.mode, names(&state)), (Mode::Normal, vec!["/m/c"]));
        press(&mut state, "\x1b");
        assert_eq!(names(&state).len(), 3);
        press(&mut state, "?q");
        assert_eq!(state.mode, Mode::Normal);
    }

    #[test]
    fn a_lost_daemon_comes_back() {
        let mut state = listed();
        for (second, why) in [(5.0, "gone"), (7.0, "still gone")] {
            update(&mut state, Input::Time(second));
            update(&mut state, Input::Lost(why.into()));
        }
        assert_eq!(state.link, Link::Lost("still gone".into(), 5.0));
        assert_eq!(names(&state).len(), 3);
        update(&mut state, Input::Status(Box::default()));
        assert_eq!(state.link, Link::Live);
    }

    #[test]
    fn words_fade() {
        let mut state = listed();
        update(&mut state, Input::Done("pinned".into()));
        update(&mut state, Input::Time(1.0));
        assert!(state.word.is_some());
        update(&mut state, Input::Time(60.0));
        assert_eq!(state.word, None);
    }
}
