//! What `top` looks like, character by character, at the sizes that people have.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use weightfs::control::{
    FileStatus, Files, FillStatus, IoStatus, MountStatus, PressureStatus, RamStatus, Status, Totals, WorkerStatus,
};

use super::render::{Theme, draw};
use super::state::{Mode, State};
use super::update::{Input, update};
use crate::output::files::examples::file;

const GIB: u64 = 1 << 30;

fn status(second: u64) -> Status {
    Status {
        mounts: vec![MountStatus { mountpoint: "/srv/models".into(), source: "/srv/models".into(), passthrough: true }],
        ram: RamStatus {
            budget_bytes: 20 * GIB,
            limit_bytes: 24 * GIB,
            budget_reason: "the reserve for other programs bounds it".into(),
            high_watermark_bytes: 19 * GIB,
            low_watermark_bytes: 18 * GIB,
            resident_bytes: 12 * GIB,
            pinned_bytes: GIB,
            client_held_bytes: 0,
        },
        io: IoStatus {
            served_from_ram_bytes: 3 * GIB * second,
            served_from_source_bytes: GIB * second,
            source_read_bytes: GIB * second,
            passthrough_opens: 2 * second,
            ..IoStatus::default()
        },
        worker: WorkerStatus { pid: 1, restarts: 0 },
        fills: vec![FillStatus {
            path: "/srv/models/diffusion_models/flux1-dev.safetensors".into(),
            bytes_done: 5 * GIB,
            bytes_total: 11 * GIB,
            class: "demand".into(),
            bytes_per_second: 2 * GIB,
        }],
        pressure: PressureStatus {
            psi_some_avg10: Some(1.5),
            mem_available_bytes: 9 * GIB,
            reserve_bytes: 8 * GIB,
            cgroup_limit_bytes: None,
        },
        uptime_seconds: 7300.0,
        ..Status::default()
    }
}

fn example() -> State {
    let mut state = State::default();
    for second in 0..8 {
        update(&mut state, Input::Time(second as f64));
        update(&mut state, Input::Status(Box::new(status(second * second))));
    }
    let at = |name: &str| format!("/srv/models/{name}");
    let flux = FileStatus {
        filling_bytes: GIB,
        in_use: true,
        unused_seconds: Some(1.0),
        ..file(&at("diffusion_models/flux1-dev.safetensors"), 22 * GIB, 11 * GIB)
    };
    let vae = FileStatus { pinned_bytes: GIB, ..file(&at("vae/ae.safetensors"), GIB, GIB) };
    let files = vec![flux, vae, file(&at("loras/style.safetensors"), GIB / 4, 0)];
    let totals = Totals { files: 3, size_bytes: 23 * GIB + GIB / 4, resident_bytes: 12 * GIB };
    update(&mut state, Input::Files(Box::new(Files { files, next: None, totals })));
    state
}

fn screen(state: &mut State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let mut rows = 0;
    terminal.draw(|frame| rows = draw(frame, state, Theme { colour: true })).unwrap();
    update(state, Input::Page(rows));
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

#[test]
fn eighty_by_twenty_four() {
    let expected = "\
weightfs  /srv/models  up 2 h  live
RAM  ███████████████████████████░░░░░░░░░░░░░░│░│░░  12.0 GiB of 20.0 GiB (60 %)
     1.0 GiB pinned, 9.0 GiB free for others (reserve 8.0 GiB)
Served 52.0 GiB/s          From RAM 75 %, 26 opens/s   From sources 13.0 GiB/s
                      ▃▅█                     ▄▄▄▄▄▄▄                        ▃▅█
                  ▁▃▆████                     ███████                    ▁▃▆████
In RAM 12.0 GiB            Budget 20.0 GiB             Stalls 2 % of the time
                                              ▅▅▅▅▅▅▅
                  ███████                     ███████
Fill  ████░░░░░░   45 %     2.0 GiB/s  demand     …_models/flux1-dev.safetensors
            IN RAM      SIZE   USED       3 files, 12.0 GiB of 23.2 GiB
████░░░░  11.0 GiB  22.0 GiB    1 s   U F diffusion_models/flux1-dev.safetensors
▓▓▓▓▓▓▓▓   1.0 GiB   1.0 GiB      –  P    vae/ae.safetensors
░░░░░░░░       0 B 256.0 MiB      –       loras/style.safetensors









p pin  f prefetch  e evict  s sort: in RAM  / filter  a in RAM  ? help  q quit
";
    assert_eq!(screen(&mut example(), 80, 24), expected, "\n{}", screen(&mut example(), 80, 24));
}

#[test]
fn a_large_terminal_has_words_instead_of_letters_and_taller_graphs() {
    let text = screen(&mut example(), 200, 60);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 60);
    assert!(text.contains("filling, 50 %, in use"), "{text}");
    let row = lines.iter().position(|line| line.ends_with("vae/ae.safetensors")).expect("the file is listed");
    assert!(row > 15, "the graphs have room: {text}");
}

#[test]
fn every_size_is_drawn() {
    for (width, height) in [(1, 1), (20, 5), (40, 10), (80, 16), (300, 100)] {
        for mode in [Mode::Normal, Mode::Filter, Mode::Help] {
            let mut state = State { mode, ..example() };
            screen(&mut state, width, height);
        }
        screen(&mut State::default(), width, height);
    }
}

#[test]
fn a_lost_daemon_is_said_and_what_was_seen_stays() {
    let mut state = example();
    update(&mut state, Input::Lost("no daemon answers\x1b[2J".into()));
    update(&mut state, Input::Time(12.0));
    let text = screen(&mut state, 120, 24);
    assert!(text.contains("no answer for 5 s: no daemon answers\u{fffd}[2J"), "{text}");
    assert!(text.contains("ae.safetensors"), "{text}");
}

#[test]
fn help_filter_and_words_are_shown() {
    let mut state = example();
    state.mode = Mode::Help;
    assert!(screen(&mut state, 80, 24).contains("free what it takes of the RAM"));
    state.mode = Mode::Filter;
    state.filter = "vae".to_owned();
    let text = screen(&mut state, 80, 24);
    assert!(text.contains("/vae█") && !text.contains("loras/style"), "{text}");
    state.mode = Mode::Normal;
    state.filter = "nothing like it".to_owned();
    assert!(screen(&mut state, 80, 24).contains("no name has these letters"));
    update(&mut state, Input::Failed("not permitted".into()));
    assert!(screen(&mut state, 80, 24).ends_with("not permitted\n"));
}
