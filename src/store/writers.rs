//! Who writes to a source file behind everybody's back: asked of the kernel by a read lease, which it grants as long as
//! nobody has the file open or mapped for writing, and which holds writers off while it lasts.

use std::fs::File;

use parking_lot::Mutex;

use crate::sys::lease;

/// The lease of one descriptor, which many may ask for at a time.
#[derive(Debug, Default)]
pub(super) struct Writers {
    /// How many hold writers off just now. Locked only while the kernel is asked, which never waits.
    holders: Mutex<u32>,
}

/// While this lives, whoever opens the file for writing waits.
#[derive(Debug)]
pub(super) struct HeldOff<'a> {
    writers: &'a Writers,
    file: &'a File,
}

impl Writers {
    /// Whether somebody has `file` open for writing, or mapped so. False where its file system does not tell.
    pub(super) fn are_there(&self, file: &File) -> bool {
        let holders = self.holders.lock();
        if *holders > 0 {
            return false;
        }
        let granted = lease::hold_writers_off(file);
        if matches!(granted, Ok(true)) {
            lease::give_back(file);
        }
        matches!(granted, Ok(false))
    }

    /// Holds writers off. None where there are some already, or where the file system does not tell.
    pub(super) fn hold_off<'a>(&'a self, file: &'a File) -> Option<HeldOff<'a>> {
        let mut holders = self.holders.lock();
        if *holders == 0 && !matches!(lease::hold_writers_off(file), Ok(true)) {
            return None;
        }
        *holders += 1;
        Some(HeldOff { writers: self, file })
    }
}

impl Drop for HeldOff<'_> {
    fn drop(&mut self) {
        let mut holders = self.writers.holders.lock();
        *holders -= 1;
        if *holders == 0 {
            lease::give_back(self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn file() -> (tempfile::TempPath, File) {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let file = File::open(&path).unwrap();
        (path, file)
    }

    #[test]
    fn those_who_ask_are_not_taken_for_writers() {
        let (path, file) = file();
        let writers = Writers::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..5_000 {
                        assert!(!writers.are_there(&file));
                        let held = (turn % 8 == 0).then(|| writers.hold_off(&file).expect("nobody writes"));
                        assert!(!writers.are_there(&file));
                        drop(held);
                    }
                });
            }
        });
        let _writer = OpenOptions::new().write(true).open(&path).unwrap();
        assert!(writers.are_there(&file) && writers.hold_off(&file).is_none());
    }

    #[test]
    fn writers_wait_for_the_last_who_holds_them_off() {
        let (path, file) = file();
        let writers = Writers::default();
        let [first, second] = [(); 2].map(|()| writers.hold_off(&file).expect("nobody writes"));
        let (send, opened) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| send.send(OpenOptions::new().write(true).open(&path).map(drop)).unwrap());
            drop(first);
            let waits = opened.recv_timeout(Duration::from_millis(200));
            drop(second);
            assert!(waits.is_err(), "it was opened for writing meanwhile");
            opened.recv().unwrap().expect("it only had to wait");
        });
    }
}
