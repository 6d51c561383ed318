//! Texts and JSON with what differs from run to run taken out, so that the rest can be compared.

use serde_json::Value;

/// Numbers become `#`, with the unit of a size or a time; bars one cell; runs of blanks one blank.
pub fn text(text: &str) -> String {
    let is_bar = |c: char| "█▓▒░│".contains(c);
    let mut masked = String::new();
    for line in text.lines() {
        let mut words = Vec::new();
        for word in line.split_whitespace() {
            let word = match word {
                bar if bar.chars().all(is_bar) => "█".to_owned(),
                // What a file has of RAM and for how long: the unit depends on the figure.
                "B" | "KiB" | "MiB" | "GiB" => "SIZE".to_owned(),
                word => numbers(word),
            };
            words.push(word);
        }
        masked += words.join(" ").trim_end();
        masked.push('\n');
    }
    for unit in ["KiB", "MiB", "GiB", "B"] {
        for end in [",", ")", "/s", ":", ";", "/s;", "/s)", "/s,"] {
            masked = masked.replace(&format!(" {unit}{end}"), &format!(" SIZE{end}"));
        }
    }
    masked
}

/// Every run of digits, points among them included, is one `#`.
fn numbers(word: &str) -> String {
    let mut masked = String::new();
    let mut in_number = false;
    let mut rest = word.chars().peekable();
    while let Some(c) = rest.next() {
        let goes_on = in_number && c == '.' && rest.peek().is_some_and(char::is_ascii_digit);
        if c.is_ascii_digit() || goes_on {
            if !in_number {
                masked.push('#');
            }
            in_number = true;
        } else {
            in_number = false;
            masked.push(c);
        }
    }
    masked
}

/// The names and kinds of what is in a JSON value: lists by their first element.
pub fn shape(value: &Value) -> Value {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "text".into(),
        Value::Array(values) => values.iter().take(1).map(shape).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_go_and_words_stay() {
        let before = "RAM     ███▒░│░  15.0 GiB of 24.0 GiB (62 %)\n1.5 KiB freed, 3 files, at 17 MiB/s  v0.1.0.";
        assert_eq!(text(before), "RAM █ # SIZE of # SIZE (# %)\n# SIZE freed, # files, at # SIZE/s v#.\n");
    }

    #[test]
    fn a_shape_is_names_and_kinds() {
        let value = serde_json::json!({"a": [1, 2], "b": {"c": null, "d": "x"}, "e": []});
        let expected = serde_json::json!({"a": ["number"], "b": {"c": "null", "d": "text"}, "e": []});
        assert_eq!(shape(&value), expected);
    }
}
