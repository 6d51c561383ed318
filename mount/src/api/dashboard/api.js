// The control interface, as the page asks it.

/// A request that was not carried out. The message is the daemon's words; the status is 0 where it did not answer.
export class Problem extends Error {
  constructor(kind, status, message) {
    super(message);
    this.kind = kind;
    this.status = status;
  }
}

/// How long an answer may take, in milliseconds. The daemon takes a tenth of a second.
const PATIENCE = 10_000;
/// How long the stream of events may be silent: the daemon says something every 15 seconds.
const SILENCE = 45_000;

/// `base` is what paths are put behind, `token` gives the right to change things.
export function createApi({ base = "", token = null } = {}) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};

  async function ask(method, path, { query = {}, body, signal } = {}) {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
    const search = given.length > 0 ? `?${new URLSearchParams(given)}` : "";
    const response = await fetch(`${base}${path}${search}`, {
      method,
      headers: body === undefined ? headers : { ...headers, "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      signal: signal ?? AbortSignal.timeout(PATIENCE),
    }).catch(() => {
      throw new Problem("away", 0, "The daemon does not answer.");
    });
    if (!response.ok) throw await problem(response);
    return response;
  }

  return {
    /// Whether this was opened with a token. The daemon may still refuse it.
    hasToken: token !== null,
    get: async (path, query) => (await ask("GET", path, { query })).json(),
    async post(path, body) {
      const response = await ask("POST", path, { body });
      const words = await response.text();
      return words ? JSON.parse(words) : null;
    },
    async remove(path) {
      await ask("DELETE", path);
    },
    /// Calls `onEvent({kind, ...data})` for each event until the stream ends; `onOpen` once it has begun.
    async events({ onOpen, onEvent }) {
      const silence = new AbortController();
      let timer = setTimeout(() => silence.abort(), PATIENCE);
      const beat = () => {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE);
      };
      try {
        const response = await ask("GET", "/v1/events", { signal: silence.signal });
        beat();
        onOpen();
        for await (const { name, data } of messages(response.body, beat)) {
          if (data) onEvent({ ...JSON.parse(data), kind: name });
        }
      } finally {
        clearTimeout(timer);
      }
    },
  };
}

async function problem(response) {
  try {
    const { type, detail, title } = await response.json();
    return new Problem(String(type).split(":").at(-1), response.status, String(detail ?? title));
  } catch {
    return new Problem("failed", response.status, `The daemon answered with status ${response.status}.`);
  }
}

/// The messages of a stream of server-sent events. EventSource cannot send the header that carries the token.
/// `beat` is called whenever something comes.
export async function* messages(body, beat = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let name = "message";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      beat();
      const lines = (buffer + value).split(/\r?\n/);
      buffer = lines.pop();
      for (const line of lines) {
        if (line === "") {
          yield { name, data: data.join("\n") };
          name = "message";
          data = [];
        } else if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
