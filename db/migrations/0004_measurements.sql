-- One round of measuring: some candidates timed against each other in one order, and what the GPU did meanwhile.
-- Another round has other allocations and another order, and maybe other clocks: what differs between rounds is noise
-- that no number of samples within one of them shows.
CREATE TABLE measurements (
    id                INTEGER PRIMARY KEY,
    run               INTEGER NOT NULL REFERENCES runs (id),
    number            INTEGER NOT NULL CHECK (number >= 0),    -- counts those of the run
    round             INTEGER NOT NULL CHECK (round >= 0),     -- 0: the first look; 1 and on: rounds of a run-off
    read_ceiling_gbps REAL    NOT NULL CHECK (read_ceiling_gbps > 0),
    sentinel_us       REAL    CHECK (sentinel_us > 0),         -- median of the sentinel; null: it was never timed
    retaken           INTEGER NOT NULL CHECK (retaken >= 0),   -- samples thrown away beside a disturbed sentinel, and taken again
    missing           INTEGER NOT NULL CHECK (missing >= 0),   -- the same, and not replaced
    state_before      TEXT    NOT NULL CHECK (json_valid(state_before)),
    state_after       TEXT    NOT NULL CHECK (json_valid(state_after))
) STRICT;
CREATE UNIQUE INDEX measurements_identity ON measurements (run, number);

ALTER TABLE samples ADD COLUMN measurement INTEGER REFERENCES measurements (id); -- null: taken before rounds were kept

-- The GPU's part of a run: from the first kernel that was built to the last trial, and how long of that it waited for
-- compilers, s.
ALTER TABLE runs ADD COLUMN gpu_seconds REAL CHECK (gpu_seconds >= 0);
ALTER TABLE runs ADD COLUMN gpu_idle_seconds REAL CHECK (gpu_idle_seconds BETWEEN 0 AND gpu_seconds);

-- The timed trials that may win, each with its samples a round (JSON, 15 digits). Who wins, and what is within noise of it, is said in
-- one place: src/times.rs and src/contest.rs.
DROP VIEW winners;
DROP VIEW trial_times;
CREATE VIEW contenders AS
SELECT t.id AS trial, t.shape, t.split, t.is_default, t.environment, k.target, v.problem, v.kernel_id,
       (SELECT json_group_array(json(round)) FROM (
           SELECT json_group_array(microseconds) AS round FROM samples WHERE trial = t.id GROUP BY measurement
       )) AS rounds
FROM current_trials AS t
JOIN kernels AS k ON k.id = t.kernel
JOIN variants AS v ON v.id = k.variant
WHERE t.outcome = 'timed' AND t.environment IS NOT NULL
  AND t.kernel IN (SELECT id FROM live_kernels)
  AND (t.kernel, t.environment) NOT IN (
      SELECT kernel, environment FROM quarantined WHERE environment IS NOT NULL
  );
