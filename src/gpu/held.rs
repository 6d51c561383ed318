//! What a cuFile process keeps in the memory of devices until somebody loads it.

use std::time::{Duration, Instant};

use super::plan::{Copy, Span};

/// Contents of files in memory of type `M`, each until its time is over.
#[derive(Debug)]
pub struct Held<M> {
    entries: Vec<Entry<M>>,
}

#[derive(Debug)]
struct Entry<M> {
    device: u32,
    content: String,
    spans: Vec<Span>,
    memory: M,
    until: Instant,
}

impl<M> Default for Held<M> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<M> Held<M> {
    /// Keeps `spans` of a content, and no longer what was kept of it before.
    pub fn keep(&mut self, device: u32, content: String, spans: Vec<Span>, memory: M, until: Instant) {
        self.entries.retain(|entry| entry.device != device || entry.content != content);
        self.entries.push(Entry { device, content, spans, memory, until });
    }

    /// Gives up what is held of a content if all of `wanted` is in it, with the copies that bring it to its place.
    pub fn take(&mut self, device: u32, content: &str, wanted: &[Span]) -> Option<(M, Vec<Copy>)> {
        let index = self.entries.iter().position(|entry| entry.device == device && entry.content == content)?;
        let copies = wanted.iter().map(|span| copy_of(&self.entries[index].spans, span)).collect::<Option<_>>()?;
        Some((self.entries.swap_remove(index).memory, copies))
    }

    /// Whether this content is there.
    pub fn has(&self, device: u32, content: &str) -> bool {
        self.entries.iter().any(|entry| entry.device == device && entry.content == content)
    }

    /// Lets go of what nobody came for. Gives how long the next one has; None where nothing is held.
    pub fn expire(&mut self, now: Instant) -> Option<Duration> {
        self.entries.retain(|entry| entry.until > now);
        self.entries.iter().map(|entry| entry.until - now).min()
    }
}

/// Where all of `span` lies in what is held, if one of `spans` holds it.
fn copy_of(spans: &[Span], span: &Span) -> Option<Copy> {
    let holds = |held: &&Span| held.start <= span.start && span.start + span.len <= held.start + held.len;
    spans.iter().find(holds).map(|held| Copy { from: held.at + span.start - held.start, to: span.at, len: span.len })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_given_once_whole_and_in_time() {
        let start = Instant::now();
        let mut held = Held::default();
        let all = Span { start: 100, len: 50, at: 8 };
        held.keep(0, "a".into(), vec![all], "first", start + Duration::from_secs(5));
        held.keep(0, "a".into(), vec![all], "second", start + Duration::from_secs(9));
        held.keep(1, "a".into(), vec![all], "elsewhere", start + Duration::from_secs(2));
        assert_eq!(held.expire(start), Some(Duration::from_secs(2)));
        let part = Span { start: 110, len: 40, at: 0 };
        assert_eq!(held.take(0, "b", &[part]), None);
        assert_eq!(held.take(0, "a", &[part, Span { start: 99, len: 2, at: 50 }]), None, "not all of it is there");
        assert_eq!(held.take(0, "a", &[part]), Some(("second", vec![Copy { from: 18, to: 0, len: 40 }])));
        assert!(!held.has(0, "a") && held.has(1, "a"));
        assert_eq!(held.expire(start + Duration::from_secs(2)), None);
        assert!(!held.has(1, "a"));
    }
}
