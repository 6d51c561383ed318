//! What the daemon itself wrote, or somebody in its place.

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
