//! Whether io_uring works here.

use weightfs::fill::{Engine, EngineChoice, EngineError, Storage};

use super::finding::Finding;

/// An engine with a ring is started, which tries the ring, and stopped.
pub fn io_uring() -> Finding {
    match Engine::start(EngineChoice::Uring, Storage::Fast) {
        Ok(_) => Finding::ok("io_uring", "works"),
        Err(EngineError::Uring { error }) => {
            let advice = EngineError::advice(&error);
            Finding::warn("io_uring", format!("cannot be used: {error}"))
                .costs("sources are read with threads, which costs some speed")
                .mend(advice)
        }
        Err(error @ EngineError::Thread(_)) => Finding::bad("io_uring", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weightfs::control::CheckState;

    #[test]
    fn it_works_or_says_what_to_do() {
        let check = io_uring().check;
        assert!(check.state == CheckState::Ok || check.mend.is_some(), "{check:?}");
    }
}
