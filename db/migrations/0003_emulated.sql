-- Two outcomes more, of a kernel in the emulator: SQLite changes a CHECK only with its table, and `samples` refers to
-- that table, so both are made anew. Views name them and find the new ones.
PRAGMA legacy_alter_table = ON; -- a rename leaves views alone

CREATE TABLE new_trials (
    id           INTEGER PRIMARY KEY,
    run          INTEGER NOT NULL REFERENCES runs (id),
    kernel       INTEGER NOT NULL REFERENCES kernels (id),
    shape        INTEGER REFERENCES shapes (id), -- null: about the kernel at every shape
    split        INTEGER REFERENCES splits (id), -- null: append, or about the whole kernel
    is_default   INTEGER NOT NULL CHECK (is_default IN (0, 1)),
    outcome      TEXT    NOT NULL CHECK (outcome IN (
        'compile_failed', 'compiled_only', 'emulated', 'faulted', 'launch_failed', 'wrong', 'timeout', 'crashed', 'timed'
    )),
    stage        TEXT    CHECK (stage IN ('compile', 'verify', 'measure')),
    message      TEXT,                               -- log, driver's error, fault or detail
    error        REAL,                               -- relative L2; null in a wrong trial: NaN
    cases        INTEGER CHECK (cases > 0),          -- that the emulator ran
    limit_s      REAL    CHECK (limit_s >= 0),       -- the time limit that was hit
    predicted_us REAL    CHECK (predicted_us >= 0),  -- by a model, never measured
    bytes        INTEGER NOT NULL CHECK (bytes >= 0),
    created_at   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    CHECK (outcome NOT IN ('timed', 'compiled_only') OR shape IS NOT NULL),
    CHECK (outcome <> 'emulated' OR shape IS NULL), -- it has no times, so shapes do not matter
    CHECK (outcome NOT IN ('timed', 'emulated') OR error IS NOT NULL),
    CHECK ((outcome = 'emulated') = (cases IS NOT NULL)),
    CHECK ((outcome IN ('timeout', 'crashed')) = (stage IS NOT NULL)),
    CHECK ((outcome = 'timeout') = (limit_s IS NOT NULL)),
    CHECK ((outcome = 'compiled_only') = (predicted_us IS NOT NULL)),
    CHECK ((outcome IN ('compile_failed', 'faulted', 'launch_failed', 'wrong', 'crashed')) = (message IS NOT NULL))
) STRICT;
INSERT INTO new_trials (id, run, kernel, shape, split, is_default, outcome, stage, message, error, limit_s,
                        predicted_us, bytes, created_at)
SELECT id, run, kernel, shape, split, is_default, outcome, stage, message, error, limit_s, predicted_us, bytes, created_at
FROM trials;

CREATE TABLE new_samples (
    trial        INTEGER NOT NULL REFERENCES new_trials (id),
    idx          INTEGER NOT NULL CHECK (idx >= 0),
    microseconds REAL    NOT NULL CHECK (microseconds > 0),
    PRIMARY KEY (trial, idx)
) STRICT, WITHOUT ROWID;
INSERT INTO new_samples SELECT trial, idx, microseconds FROM samples;

DROP TABLE samples;
DROP TABLE trials;
ALTER TABLE new_trials RENAME TO trials;
ALTER TABLE new_samples RENAME TO samples;
CREATE INDEX trials_key ON trials (kernel, shape, split);
CREATE INDEX trials_run ON trials (run, outcome);
PRAGMA legacy_alter_table = OFF;

-- Kernels that gave a wrong result, crashed or hung on a GPU or in the emulator: they win at no shape there.
DROP VIEW quarantined;
CREATE VIEW quarantined AS
SELECT DISTINCT kernel, environment
FROM current_trials
WHERE outcome IN ('wrong', 'faulted') OR (outcome IN ('crashed', 'timeout') AND stage <> 'compile');
