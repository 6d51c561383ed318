// Keeps the page true: the stream of events, and looks at the status and the history. When the daemon is away it tries
// again, and says when it is back.

const STATUS_EVERY = 1000;
const HISTORY_EVERY = 2000;
const RESIDENT_EVERY = 3000;
const ALL_EVERY = 120_000;
const FIRST_WAIT = 500;
const LONGEST_WAIT = 5000;

/// Calls `onStatus(status)`, `onHistory(history)` and `onEvent(event)` with what comes; `onConnection(state, words)` when
/// the daemon is there ("live") or not ("away"); `onBack()` when it is there after it was not.
export function createLive({ api, library, onStatus, onHistory, onEvent, onConnection, onBack }) {
  let connection = "connecting";
  let worker = null;

  function isThere() {
    if (connection === "live") return;
    const was = connection;
    connection = "live";
    onConnection("live", "Live");
    if (was === "away") onBack();
  }

  function isAway(error) {
    connection = "away";
    onConnection("away", error.status ? error.message : "The daemon does not answer. Trying again…");
  }

  async function events() {
    let wait = FIRST_WAIT;
    for (;;) {
      try {
        await api.events({
          onOpen() {
            wait = FIRST_WAIT;
            isThere();
          },
          onEvent,
        });
      } catch (error) {
        isAway(error);
      }
      await sleep(wait);
      wait = Math.min(LONGEST_WAIT, wait * 2);
    }
  }

  async function look() {
    const status = await api.get("/v1/status");
    isThere();
    if (worker !== null && worker !== status.worker.pid) onBack(status.worker);
    worker = status.worker.pid;
    onStatus(status);
  }

  /// Runs `task` again and again while somebody looks at the page.
  async function every(milliseconds, task) {
    for (;;) {
      try {
        if (connection === "away") await sleep(FIRST_WAIT);
        await task();
      } catch (error) {
        // A daemon that refuses is there; it is asked again.
        if (!error.status) isAway(error);
      }
      await sleep(milliseconds);
      await visible();
    }
  }

  return {
    start() {
      events();
      every(STATUS_EVERY, look);
      every(HISTORY_EVERY, async () => onHistory(await api.get("/v1/history")));
      every(RESIDENT_EVERY, () => library.loadResident());
      every(ALL_EVERY, () => library.loadAll());
      every(300, () => library.loadTouched());
    },
    look,
  };
}

function sleep(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", function shown() {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", shown);
      resolve();
    });
  });
}
