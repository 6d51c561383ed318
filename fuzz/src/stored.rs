//! What the daemon itself wrote, or somebody in its place.

use weightfs::journal::State;
use weightfs::predict::History;
use weightfs::trace::{Reader, Writer};

/// What was understood of a trace is the same after it was written again.
pub fn trace(bytes: &[u8]) {
    let Ok(reader) = Reader::new(bytes) else { return };
    let events: Vec<_> = reader.map_while(Result::ok).collect();
    let mut writer = Writer::new(Vec::new()).expect("memory takes everything");
    events.iter().for_each(|event| writer.record(event).expect("memory takes everything"));
    let again = writer.finish().expect("memory takes everything");
    let read: Vec<_> = Reader::new(&again).expect("just written").map(|event| event.expect("just written")).collect();
    assert_eq!(read, events);
}

/// A history that was understood is the same after it was written down and read again.
pub fn history(bytes: &[u8]) {
    let Ok(history) = serde_json::from_slice::<History>(bytes) else { return };
    let text = serde_json::to_string(&history).expect("it can be written");
    let again: History = serde_json::from_str(&text).expect("just written");
    assert_eq!(serde_json::to_string(&again).expect("it can be written"), text);
}

/// Records of any content, each behind a byte with its length: a journal comes to something, and that is the same after
/// it was written anew.
pub fn journal(mut bytes: &[u8]) {
    State::replay(bytes);
    let mut framed = Vec::new();
    while let Some((length, rest)) = bytes.split_first() {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        framed.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        framed.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
        framed.extend_from_slice(payload);
        bytes = rest;
    }
    let state = State::replay(&framed);
    assert_eq!(State::replay(&state.journal()), state);
    // Torn anywhere, it is a shorter journal.
    State::replay(&framed[..framed.len() - framed.len() / 3]);
}
