// A made-up daemon: a library of models, what of it is in RAM, and how that goes on. No network.

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const MOUNT = "/srv/models";

const NAMED = [
  ["diffusion_models/flux1-dev-fp8.safetensors", 11.9, { resident: 1, use: true }],
  ["diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors", 13.3, { resident: 0.62 }],
  ["diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors", 13.3, {}],
  ["diffusion_models/qwen_image_fp8_e4m3fn.safetensors", 19.0, {}],
  ["text_encoders/t5xxl_fp8_e4m3fn_scaled.safetensors", 4.8, { resident: 1, pinned: 1 }],
  ["text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors", 6.3, { resident: 0.4 }],
  ["text_encoders/clip_l.safetensors", 0.23, { resident: 1, pinned: 1, vram: ["cuda:0"] }],
  ["text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors", 8.7, {}],
  ["checkpoints/sd_xl_base_1.0.safetensors", 6.5, { resident: 1, pinned: 0.24 }],
  ["checkpoints/juggernautXL_v9.safetensors", 6.6, { held: 1.1 }],
  ["checkpoints/v1-5-pruned-emaonly.safetensors", 4.0, {}],
  ["vae/ae.safetensors", 0.31, { resident: 1, pinned: 1 }],
  ["vae/wan_2.1_vae.safetensors", 0.24, { resident: 1, vram: ["cuda:0"] }],
  ["controlnet/flux-union-pro-2.safetensors", 4.0, {}],
  ["llm/Qwen3-8B-Q5_K_M.gguf", 5.5, { resident: 1 }],
  ["clip_vision/sigclip_vision_patch14_384.safetensors", 0.8, {}],
  ["upscale_models/4x-UltraSharp.pth", 0.063, {}],
];

/// A small generator with a seed, so that every run sees the same world.
function random(seed) {
  let state = seed;
  return () => {
    state = (state * 1664525 + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

const whole = (share, size) => Math.min(size, Math.round((share * size) / (2 * MIB)) * 2 * MIB);

function file(path, size, { resident = 0, pinned = 0, held = 0, use = false, vram = [] } = {}) {
  const bytes = resident >= 1 ? size : whole(resident, size);
  return {
    path: `${MOUNT}/${path}`,
    size_bytes: size,
    resident_bytes: bytes,
    pinned_bytes: pinned >= 1 ? size : whole(pinned, size),
    kept_bytes: bytes,
    client_held_bytes: Math.round(held * GIB),
    state: "absent",
    filling_bytes: 0,
    format: path.endsWith("gguf") ? "gguf" : path.endsWith("pth") ? "torch" : "safetensors",
    priority: "normal",
    in_use: use,
    in_vram: vram,
    resident_seconds: bytes > 0 ? 5400 : null,
    unused_seconds: bytes > 0 ? 40 : null,
    last_load: bytes > 0 ? "map" : null,
  };
}

/// A daemon over `loras` files besides the named ones. `step()` lets a second pass.
export function createWorld({ loras = 48 } = {}) {
  const dice = random(7);
  const files = new Map();
  for (const [path, size, state] of NAMED) files.set(`${MOUNT}/${path}`, file(path, Math.round(size * GIB), state));
  for (let n = 0; n < loras; n += 1) {
    const resident = n % 9 === 0 ? 1 : 0;
    const one = file(
      `loras/${["style", "character", "concept"][n % 3]}/lora-${String(n).padStart(5, "0")}.safetensors`,
      Math.round((20 + dice() * 400) * MIB),
      { resident },
    );
    files.set(one.path, one);
  }
  const limit = 48 * GIB;
  const daemon = {
    files,
    jobs: new Map(),
    fills: new Map(),
    samples: [],
    listeners: new Set(),
    at: 1_790_000_000,
    limit,
    asked: limit,
    pid: 4242,
    restarts: 0,
    evicted: 0,
    numbers: 0,
    pressed: 0,
  };
  settle(daemon);
  for (let n = 0; n < 600; n += 1) sample(daemon, dice, n);
  return { ...methods(daemon, dice), daemon };
}

function settle({ files }) {
  for (const one of files.values()) {
    one.state = one.resident_bytes >= one.size_bytes ? "resident" : one.resident_bytes > 0 ? "partial" : "absent";
    one.kept_bytes = one.resident_bytes;
  }
}

function ram({ files, limit, asked, pressed }) {
  const list = [...files.values()];
  const sum = (name) => list.reduce((total, one) => total + one[name], 0);
  const budget = Math.min(limit, asked, limit - pressed);
  return {
    budget_bytes: budget,
    limit_bytes: limit,
    budget_reason:
      pressed > 0
        ? "the reserve for other programs bounds it, within 256 MiB"
        : asked < limit
          ? "set so while running"
          : "as much as --ram allows",
    high_watermark_bytes: Math.round(budget * 0.98),
    low_watermark_bytes: Math.round(budget * 0.96),
    resident_bytes: sum("resident_bytes"),
    pinned_bytes: sum("pinned_bytes"),
    client_held_bytes: sum("client_held_bytes"),
  };
}

function sample(daemon, dice, n) {
  const loading = n % 90 > 4 && n % 90 < 20;
  const cold = loading && n % 180 > 90;
  const now = ram(daemon);
  daemon.at += 1;
  const from = loading ? (2 + dice() * 4) * 1e9 : dice() * 2e7;
  const read = cold ? (1.4 + dice() * 0.4) * 1e9 : 0;
  daemon.samples.push({
    at: daemon.at,
    served_bytes: Math.round(from + read),
    ram_bytes: Math.round(from),
    source_bytes: Math.round(read),
    source_read_bytes: Math.round(cold ? read * 1.1 : 0),
    evicted_bytes: 0,
    passthrough_opens: loading && n % 5 === 0 ? 1 : 0,
    passthrough_bytes: loading && n % 5 === 0 ? 4 * GIB : 0,
    stream_opens: cold ? 1 : 0,
    resident_bytes: Math.min(now.budget_bytes, now.resident_bytes * (0.8 + 0.2 * Math.min(1, n / 400))),
    pinned_bytes: now.pinned_bytes,
    client_held_bytes: n > 480 ? now.client_held_bytes : 0,
    budget_bytes: n > 300 && n < 380 ? 40 * GIB : now.budget_bytes,
    mem_available_bytes: 14 * GIB,
    psi_some_avg10: n > 290 && n < 390 ? 2 + dice() * 6 : dice() * 0.4,
  });
  if (daemon.samples.length > 600) daemon.samples.shift();
}

function methods(daemon, dice) {
  const emit = (kind, data = {}) => {
    for (const listen of daemon.listeners) listen({ kind, at: daemon.at, ...data });
  };
  let steps = 600;

  function step() {
    steps += 1;
    sample(daemon, dice, steps);
    for (const [path, fill] of daemon.fills) {
      const one = daemon.files.get(path);
      makeRoom(path);
      const more = Math.min(Math.round(1.7 * GIB), one.size_bytes - one.resident_bytes);
      one.resident_bytes += more;
      one.filling_bytes = Math.min(256 * MIB, one.size_bytes - one.resident_bytes);
      fill.bytes_done = one.resident_bytes;
      if (fill.pin) one.pinned_bytes = one.resident_bytes;
      if (one.resident_bytes >= one.size_bytes) {
        daemon.fills.delete(path);
        emit("filled", {
          path,
          bytes: one.size_bytes,
          reason: fill.class === "prefetch" ? "prefetched" : "a program reads it",
        });
      }
    }
    for (const job of daemon.jobs.values()) {
      const one = daemon.files.get(job.path);
      job.bytes_done = one.resident_bytes;
      if (job.state === "running" && one.resident_bytes >= one.size_bytes) job.state = "done";
    }
    settle(daemon);
  }

  function makeRoom(path) {
    const now = ram(daemon);
    if (now.resident_bytes + now.client_held_bytes < now.high_watermark_bytes - 2 * GIB) return;
    const last = [...daemon.files.values()]
      .filter((one) => one.path !== path && one.resident_bytes > one.pinned_bytes + 2 * GIB)
      .at(-1);
    if (!last) return;
    const gone = 2 * GIB;
    last.resident_bytes -= gone;
    daemon.evicted += gone;
    emit("evicted", { path: last.path, bytes: gone, reason: "room is made for what is used more often" });
  }

  function fill(path, kind, pin = false) {
    const one = daemon.files.get(path);
    if (one.resident_bytes >= one.size_bytes) return;
    daemon.fills.set(path, {
      path,
      bytes_done: one.resident_bytes,
      bytes_total: one.size_bytes,
      class: kind,
      bytes_per_second: 1_750_000_000,
      pin,
    });
  }

  return {
    step,
    emit,
    fill,
    status: () => ({
      mounts: [{ mountpoint: MOUNT, source: MOUNT, passthrough: true }],
      ram: ram(daemon),
      io: {
        engine: "io_uring",
        source_read_bytes: 9e10,
        served_from_ram_bytes: 4e11,
        served_from_source_bytes: 8e10,
        passthrough_opens: 120,
        stream_opens: 14,
        evicted_bytes: daemon.evicted + 31 * GIB,
      },
      worker: { pid: daemon.pid, restarts: daemon.restarts },
      version: "0.1.0",
      notes: [
        "the right to set fs.fuse.max_pages_limit is missing: reads of at most 1 MiB at a time, which makes streaming slower",
      ],
      pressure: {
        psi_some_avg10: daemon.samples.at(-1).psi_some_avg10,
        mem_available_bytes: 14 * GIB,
        reserve_bytes: Math.round(6.4 * GIB),
        cgroup_limit_bytes: null,
      },
      fills: [...daemon.fills.values()].map(({ pin, ...rest }) => rest),
      hints: { in_use: 1, queued: 3, in_vram: 2 },
      policy: "auto, now reuse",
      trace: { recording: false, file: null },
      uptime_seconds: 18400,
    }),
    history: () => ({ interval_seconds: 1, samples: daemon.samples }),
    explain(path) {
      const one = daemon.files.get(path);
      const why =
        one.pinned_bytes > 0
          ? "It is pinned, and so stays until the pin is taken back."
          : one.resident_bytes > 0
            ? "It was used 4 times in the last hour, every 9 minutes; reading it again would take 7 s. That is worth more than anything that asks for room."
            : "It was read once in the last hour. There was no room, and what is kept is used more often, so it was read past the arena.";
      return {
        path,
        size_bytes: one.size_bytes,
        resident_bytes: one.resident_bytes,
        pinned_bytes: one.pinned_bytes,
        kept_bytes: one.kept_bytes,
        resident_seconds: one.resident_seconds,
        unused_seconds: one.unused_seconds,
        held: one.in_use,
        why,
        policy: "auto, now reuse",
        next:
          one.resident_bytes > one.pinned_bytes
            ? { bytes: 2 * GIB, reason: "the end of the file, which is used last", bytes_before: 5 * GIB }
            : null,
        budget_bytes: ram(daemon).budget_bytes,
        budget_reason: ram(daemon).budget_reason,
      };
    },
    tensors: (path) => tensors(daemon.files.get(path)),
    pin(path, pattern) {
      const one = daemon.files.get(path);
      one.pinned_bytes = pattern ? whole(0.24, one.size_bytes) : one.resident_bytes;
      if (!pattern) fill(path, "prefetch", true);
      emit("pinned", { path, bytes: one.size_bytes });
      return { files: 1, bytes: one.size_bytes, left_bytes: one.size_bytes - one.resident_bytes };
    },
    unpin(path) {
      daemon.files.get(path).pinned_bytes = 0;
      emit("unpinned", { path });
      return { files: 1, bytes: 0, left_bytes: 0 };
    },
    evict(path, reason = "asked for") {
      const one = daemon.files.get(path);
      const gone = one.resident_bytes - one.pinned_bytes;
      one.resident_bytes = one.pinned_bytes;
      daemon.evicted += gone;
      settle(daemon);
      emit("evicted", { path, bytes: gone, reason });
      return { files: 1, bytes: gone, left_bytes: one.pinned_bytes };
    },
    prefetch(path) {
      const one = daemon.files.get(path);
      daemon.numbers += 1;
      const job = {
        id: `p${daemon.numbers}`,
        path,
        state: "running",
        files: 1,
        bytes_done: one.resident_bytes,
        bytes_total: one.size_bytes,
        bytes_per_second: 1_750_000_000,
      };
      daemon.jobs.set(job.id, job);
      fill(path, "prefetch");
      emit("prefetch", { path, reason: "began" });
      return job;
    },
    cancel(id) {
      const job = daemon.jobs.get(id);
      job.state = "cancelled";
      daemon.fills.delete(job.path);
    },
    budget(limit) {
      daemon.asked = limit ?? daemon.limit;
      emit("budget", { bytes: ram(daemon).budget_bytes, reason: ram(daemon).budget_reason });
      return {};
    },
    press(bytes) {
      daemon.pressed = bytes;
      emit("budget", { bytes: ram(daemon).budget_bytes, reason: ram(daemon).budget_reason });
    },
  };
}

function tensors(one) {
  const blocks = 38;
  const size = Math.floor(one.size_bytes / blocks);
  const list = [];
  const checkpoint = one.path.includes("checkpoints");
  for (let n = 0; n < blocks; n += 1) {
    const offset = n * size;
    const resident = Math.max(0, Math.min(size, one.resident_bytes - offset));
    const pinned =
      one.pinned_bytes > 0 &&
      (checkpoint ? offset >= one.size_bytes - one.pinned_bytes - size : offset + size <= one.pinned_bytes + size);
    const group =
      checkpoint && n >= 29 ? `conditioner.embedders.${n - 29}` : `model.diffusion_model.double_blocks.${n}`;
    list.push({
      name: `${group}.weight`,
      group,
      dtype: "F8_E4M3",
      shape: [3072, 9216],
      offset,
      size_bytes: size,
      resident_bytes: resident,
      pinned,
    });
  }
  const groups = list.map((tensor) => ({
    name: tensor.group,
    tensors: 12,
    size_bytes: tensor.size_bytes,
    resident_bytes: tensor.resident_bytes,
    pinned_bytes: tensor.pinned ? tensor.resident_bytes : 0,
  }));
  const part = (name, some, pattern) => ({
    name,
    tensors: some.length,
    size_bytes: some.length * size,
    resident_bytes: some.reduce((sum, tensor) => sum + tensor.resident_bytes, 0),
    pattern,
  });
  return {
    path: one.path,
    size_bytes: one.size_bytes,
    header_bytes: 4096,
    format: one.format,
    groups,
    omitted: 0,
    components: checkpoint
      ? [
          part("diffusion_model", list.slice(0, 29), "model.diffusion_model.*"),
          part("text_encoder", list.slice(29, 36), "conditioner.*"),
          part("vae", list.slice(36), "first_stage_model.*"),
        ]
      : [part("diffusion_model", list, "*")],
    tensors: list.map(({ group, ...tensor }) => tensor),
  };
}
