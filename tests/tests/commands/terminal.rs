//! `weightfs top` in real terminals, and bars where nobody looks.

use serde_json::Value;
use weightfs_tests::python;
use weightfs_tests::requirements::{Need, met};
use weightfs_tests::screen::Screen;
use weightfs_tests::system::wait_until;

use crate::{Library, PATIENCE};

const SIZES: [(u16, u16); 2] = [(80, 24), (200, 60)];

fn state(library: &Library) -> Value {
    library.base_status()
}

#[test]
fn top_shows_and_steers_in_terminals_of_both_sizes() {
    if !met(&[Need::Tmux]) {
        return;
    }
    for (columns, rows) in SIZES {
        let Some(library) = Library::mounted() else { return };
        let screen = Screen::start(library.mount.private_folder(), &["top", library.root()], columns, rows);
        let text = screen.wait_for(&["live", "base.safetensors", "q quit"]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), usize::from(rows), "{text}");
        assert!(lines.last().is_some_and(|line| line.contains("q quit")), "{text}");
        for title in ["Served", "From RAM", "From sources", "In RAM", "Budget", "Stalls", "loras/a.safetensors"] {
            assert!(text.contains(title), "{title}: {text}");
        }

        // The first row of names that have this in them.
        screen.press(&["/", "b", "a", "s", "e", "Enter", "j"]);
        let text = screen.wait_for(&["names with 'base'"]);
        assert!(!text.contains("loras/a"), "{text}");
        screen.press(&["f"]);
        assert!(wait_until(PATIENCE, || state(&library)["state"] == "resident"), "{:#}", state(&library));
        screen.press(&["p"]);
        let is_pinned = || state(&library)["pinned_bytes"].as_u64() >= state(&library)["size_bytes"].as_u64();
        assert!(wait_until(PATIENCE, is_pinned), "{:#}", state(&library));
        let mark = if columns > 100 { "pinned" } else { " P " };
        let row =
            |text: &str| text.lines().find(|line| line.contains("base.safetensors") && line.contains(mark)).is_some();
        assert!(wait_until(PATIENCE, || row(&screen.text())), "{}", screen.text());
        screen.press(&["p"]);
        assert!(wait_until(PATIENCE, || state(&library)["pinned_bytes"] == 0), "{:#}", state(&library));
        let is_gone = || {
            screen.press(&["e"]);
            std::thread::sleep(std::time::Duration::from_millis(200));
            state(&library)["state"] == "absent"
        };
        assert!(wait_until(PATIENCE, is_gone), "{:#}\n{}", state(&library), screen.text());

        screen.press(&["Escape"]);
        screen.wait_for(&["loras/a.safetensors"]);
        screen.press(&["?"]);
        screen.wait_for(&["any key goes back", "read it into RAM now"]);
        screen.press(&["x"]);
        screen.resize(100, 30);
        screen.press(&["Escape", "s"]);
        let text = screen.wait_for(&["s sort: used"]);
        assert_eq!(text.lines().count(), 30, "{text}");
        screen.press(&["q"]);
        assert_eq!(screen.wait(), 0);
        drop(screen);
        library.mount.stop();
    }
}

#[test]
fn top_stays_when_the_daemon_goes_and_ends_when_it_is_told() {
    if !met(&[Need::Tmux]) {
        return;
    }
    let Some(library) = Library::mounted() else { return };
    let screen = Screen::start(library.mount.private_folder(), &["top", library.root()], 120, 24);
    screen.wait_for(&["live", "base.safetensors"]);
    library.mount.stop();
    screen.wait_for(&["no answer for", "base.safetensors"]);
    screen.press(&["C-c"]);
    assert_eq!(screen.wait(), 0);
}

#[test]
fn top_leaves_a_pseudo_terminal_as_it_was() {
    if !met(&[Need::Python]) {
        return;
    }
    for (columns, rows) in SIZES {
        let Some(library) = Library::mounted() else { return };
        let binary = weightfs_tests::mount::binary();
        let (columns_text, rows_text) = (columns.to_string(), rows.to_string());
        let arguments = [&columns_text, &rows_text, "q", crate::text(&binary), "top", library.root()];
        let seen = python::run("terminal.py", &arguments).expect("the terminal");
        assert_eq!(seen["code"], 0, "{seen:#}");
        let output = seen["output"].as_str().expect("text");
        let (enter, leave) = ("\x1b[?1049h", "\x1b[?1049l");
        assert!(output.find(enter) < output.find(leave) && output.contains(enter), "{output:?}");
        assert!(output.contains("\x1b[?25h"), "the cursor is back: {output:?}");
        let places: Vec<(u16, u16)> = places(output).collect();
        let last = |of: fn(&(u16, u16)) -> u16| places.iter().map(of).max();
        assert_eq!(last(|place| place.0), Some(rows), "{output:?}");
        assert!(last(|place| place.1) <= Some(columns), "{output:?}");
        library.mount.stop();
    }
}

/// The rows and columns that the cursor was sent to.
fn places(output: &str) -> impl Iterator<Item = (u16, u16)> {
    output.split("\x1b[").filter_map(|code| {
        let (place, _) = code.split_once('H')?;
        let (row, column) = place.split_once(';')?;
        Some((row.parse().ok()?, column.parse().ok()?))
    })
}

#[test]
fn top_needs_a_terminal() {
    let Some(library) = Library::mounted() else { return };
    let (code, stdout, words) = library.run(&["top", library.root()]);
    assert_eq!((code, stdout.as_str()), (2, ""), "{words}");
    assert!(words.contains("weightfs status --json"), "{words}");
    library.mount.stop();
}

#[test]
fn a_prefetch_draws_a_bar_on_a_terminal_and_ls_has_colours_there() {
    if !met(&[Need::Tmux, Need::Python]) {
        return;
    }
    let Some(library) = Library::mounted() else { return };
    let private = library.mount.private_folder();
    let screen = Screen::start(private, &["prefetch", "--wait", &library.base()], 100, 10);
    screen.wait_for(&["resident, 1 file"]);
    assert_eq!(screen.wait(), 0);
    let binary = weightfs_tests::mount::binary();
    let seen = python::run("terminal.py", &["80", "24", "", crate::text(&binary), "ls", library.root()]).expect("ls");
    assert!(seen["output"].as_str().is_some_and(|output| output.contains("\x1b[32m█")), "{seen:#}");
    assert!(!library.told(&["ls", library.root()]).contains('\x1b'));
    library.mount.stop();
}
