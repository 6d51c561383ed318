//! When to start another worker, and when to stop trying.

use std::time::Duration;

/// A worker that lived longer has done its work: what ended it may not end the next.
const LONG: Duration = Duration::from_secs(1);
/// Short lives in a row after which nothing is hoped for.
const MOST: u32 = 8;
/// Before the third attempt in a row; doubled for every further one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub struct Strikes(u32);

impl Strikes {
    /// A worker has died after a life of this length: how long to wait for the next, or None to give up.
    pub fn after(&mut self, lived: Duration) -> Option<Duration> {
        if lived >= LONG {
            self.0 = 0;
            return Some(Duration::ZERO);
        }
        self.0 += 1;
        match self.0 {
            1 => Some(Duration::ZERO),
            strikes if strikes < MOST => Some(FIRST_PAUSE * (1 << (strikes - 2))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lives_in_a_row_are_the_end_and_a_long_one_is_a_new_beginning() {
        let mut strikes = Strikes::default();
        let short = Duration::from_millis(10);
        let pauses: Vec<_> = (0..MOST).map(|_| strikes.after(short)).collect();
        assert_eq!(pauses[0], Some(Duration::ZERO));
        assert!(
            pauses[..MOST as usize - 1].windows(2).all(|pair| pair[0] < pair[1]) && pauses[MOST as usize - 1].is_none()
        );
        let mut strikes = Strikes::default();
        for _ in 0..100 {
            assert!(strikes.after(short).is_some());
            assert_eq!(strikes.after(LONG), Some(Duration::ZERO));
        }
    }
}
