-- What is stored. Every fact stands once: names and their JSON in tables of their own, trials refer.
PRAGMA application_id = 1853254518; -- 'nvkv', so that another program's database is recognised

-- A board with a driver. Facts beside the key are properties of the board.
CREATE TABLE environments (
    id               INTEGER PRIMARY KEY,
    uuid             TEXT    NOT NULL,
    driver           TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    capability_major INTEGER NOT NULL,
    capability_minor INTEGER NOT NULL,
    sms              INTEGER NOT NULL,
    l2_bytes         INTEGER NOT NULL,
    memory_bytes     INTEGER NOT NULL,
    max_sm_clock     INTEGER NOT NULL, -- MHz
    max_memory_clock INTEGER NOT NULL, -- MHz
    UNIQUE (uuid, driver)
) STRICT;

-- One invocation of the tuner.
CREATE TABLE runs (
    id                 INTEGER PRIMARY KEY,
    started_at         TEXT    NOT NULL, -- UTC, RFC 3339
    finished_at        TEXT,             -- null: still running, or killed
    command            TEXT    NOT NULL,
    target             TEXT    NOT NULL,
    preset             TEXT    NOT NULL,
    generator          TEXT    NOT NULL,
    nvrtc              TEXT    NOT NULL,
    environment        INTEGER REFERENCES environments (id), -- null: nothing is measured
    measurement_policy TEXT,
    read_ceiling_gbps  REAL    CHECK (read_ceiling_gbps > 0),
    gpu_state          TEXT    CHECK (gpu_state IS NULL OR json_valid(gpu_state))
) STRICT;
CREATE INDEX runs_environment ON runs (environment);

CREATE TABLE problems (
    id   INTEGER PRIMARY KEY,
    key  TEXT    NOT NULL UNIQUE,
    json TEXT    NOT NULL CHECK (json_valid(json))
) STRICT;

CREATE TABLE variants (
    id        INTEGER PRIMARY KEY,
    problem   INTEGER NOT NULL REFERENCES problems (id),
    key       TEXT    NOT NULL,
    kernel_id TEXT    NOT NULL UNIQUE,
    json      TEXT    NOT NULL CHECK (json_valid(json)),
    UNIQUE (problem, key)
) STRICT;

-- A rendered source under one NVRTC for one target. The compiler's facts are null where it failed.
CREATE TABLE kernels (
    id            INTEGER PRIMARY KEY,
    target        TEXT    NOT NULL,
    variant       INTEGER NOT NULL REFERENCES variants (id),
    source_hash   TEXT    NOT NULL,
    nvrtc         TEXT    NOT NULL,
    generator     TEXT    NOT NULL, -- that first rendered this source
    seen_run      INTEGER NOT NULL REFERENCES runs (id), -- last run whose space held it
    cubin_hash    TEXT,
    registers     INTEGER CHECK (registers >= 0),
    static_shared INTEGER CHECK (static_shared >= 0),
    spill_stores  INTEGER CHECK (spill_stores >= 0),
    spill_loads   INTEGER CHECK (spill_loads >= 0),
    stack         INTEGER CHECK (stack >= 0),
    cubin_bytes   INTEGER CHECK (cubin_bytes >= 0),
    instructions  INTEGER CHECK (instructions >= 0),
    UNIQUE (target, variant, source_hash, nvrtc),
    CHECK (
        (cubin_hash IS NULL) + (registers IS NULL) + (static_shared IS NULL) + (spill_stores IS NULL)
        + (spill_loads IS NULL) + (stack IS NULL) + (cubin_bytes IS NULL) + (instructions IS NULL) IN (0, 8)
    )
) STRICT;
CREATE INDEX kernels_variant ON kernels (variant);
CREATE INDEX kernels_seen_run ON kernels (seen_run);

CREATE TABLE shapes (
    id       INTEGER PRIMARY KEY,
    key      TEXT    NOT NULL UNIQUE,
    json     TEXT    NOT NULL CHECK (json_valid(json)),
    batch    INTEGER CHECK (batch >= 0),   -- decode
    context  INTEGER CHECK (context >= 0), -- decode
    tokens   INTEGER CHECK (tokens >= 0),  -- append
    kv_heads INTEGER NOT NULL CHECK (kv_heads > 0),
    CHECK ((batch IS NULL) = (context IS NULL) AND (batch IS NULL) <> (tokens IS NULL))
) STRICT;

CREATE TABLE splits (
    id   INTEGER PRIMARY KEY,
    key  TEXT    NOT NULL UNIQUE,
    json TEXT    NOT NULL CHECK (json_valid(json))
) STRICT;

-- One trial. Rows are only added: a later one of the same key supersedes (view `current_trials`).
-- The outcome's fields are columns and not JSON, so that a NaN error (null) survives.
CREATE TABLE trials (
    id           INTEGER PRIMARY KEY,
    run          INTEGER NOT NULL REFERENCES runs (id),
    kernel       INTEGER NOT NULL REFERENCES kernels (id),
    shape        INTEGER REFERENCES shapes (id), -- null: about the kernel at every shape
    split        INTEGER REFERENCES splits (id), -- null: append, or about the whole kernel
    is_default   INTEGER NOT NULL CHECK (is_default IN (0, 1)),
    outcome      TEXT    NOT NULL CHECK (outcome IN (
        'compile_failed', 'compiled_only', 'launch_failed', 'wrong', 'timeout', 'crashed', 'timed'
    )),
    stage        TEXT    CHECK (stage IN ('compile', 'verify', 'measure')),
    message      TEXT,                               -- log, driver's error or detail
    error        REAL,                               -- relative L2; null in a wrong trial: NaN
    limit_s      REAL    CHECK (limit_s >= 0),       -- the time limit that was hit
    predicted_us REAL    CHECK (predicted_us >= 0),  -- by a model, never measured
    bytes        INTEGER NOT NULL CHECK (bytes >= 0),
    created_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    CHECK (outcome NOT IN ('timed', 'compiled_only') OR shape IS NOT NULL),
    CHECK (outcome <> 'timed' OR error IS NOT NULL),
    CHECK ((outcome IN ('timeout', 'crashed')) = (stage IS NOT NULL)),
    CHECK ((outcome = 'timeout') = (limit_s IS NOT NULL)),
    CHECK ((outcome = 'compiled_only') = (predicted_us IS NOT NULL)),
    CHECK ((outcome IN ('compile_failed', 'launch_failed', 'wrong', 'crashed')) = (message IS NOT NULL))
) STRICT;
CREATE INDEX trials_key ON trials (kernel, shape, split);
CREATE INDEX trials_run ON trials (run, outcome);

-- Times of single calls of a timed trial, in the order taken.
CREATE TABLE samples (
    trial        INTEGER NOT NULL REFERENCES trials (id),
    idx          INTEGER NOT NULL CHECK (idx >= 0),
    microseconds REAL    NOT NULL CHECK (microseconds > 0),
    PRIMARY KEY (trial, idx)
) STRICT, WITHOUT ROWID;
