//! Ctrl-C and SIGTERM: the mount goes before the program does.

use nix::sys::signal::{SigSet, Signal};

use crate::error::{Doing, Result};

/// What a shell expects of a program that a signal ended.
const INTERRUPTED: i32 = 130;

/// Calls `clean_up` on the first signal and ends the program. To be called before any other thread is started.
pub fn on_signal(clean_up: impl FnOnce() + Send + 'static) -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGHUP);
    signals.thread_block().doing(|| "block signals".to_owned())?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if signals.wait().is_ok() {
                eprintln!("interrupted: unmounting");
                clean_up();
                std::process::exit(INTERRUPTED);
            }
        })
        .doing(|| "start a thread".to_owned())?;
    Ok(())
}
