-- A history that several machines write: rows have identities and an order that survive a merge, boards of one model
-- count as one place to measure, failures can be released, results carried over to an identical cubin.

-- `clock` is a hybrid logical clock (Kulkarni et al. 2014, "Logical Physical Clocks"): microseconds since 1970, or one
-- more than the last row's where the machine's clock is behind that. It decides which of two rows is later, in one
-- database and across merged ones, and a wall clock that steps back reorders nothing. Row ids follow it.
-- Closed form over rows i = 1, 2, ... with wall clocks w: c_j = j + max over i <= j of (w_i - i).
--
-- `identity` is random for new runs. That of older runs is what they say of themselves, so that copies of one file agree.
ALTER TABLE runs ADD COLUMN identity TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN clock INTEGER NOT NULL DEFAULT 0;
UPDATE runs SET identity = concat_ws(' ', started_at, target, id, command,
                                     (SELECT uuid FROM environments AS e WHERE e.id = runs.environment));
UPDATE runs SET clock = timed.clock
FROM (SELECT id, row + max(wall - row) OVER (ORDER BY id) AS clock
      FROM (SELECT id, row_number() OVER (ORDER BY id) AS row,
                   1000000 * coalesce(unixepoch(started_at), 0) AS wall FROM runs)) AS timed
WHERE timed.id = runs.id;
CREATE UNIQUE INDEX runs_identity ON runs (identity);

-- A trial is identified by its run and its clock.
ALTER TABLE trials ADD COLUMN clock INTEGER NOT NULL DEFAULT 0;
UPDATE trials SET clock = timed.clock
FROM (SELECT id, row + max(wall - row) OVER (ORDER BY id) AS clock
      FROM (SELECT id, row_number() OVER (ORDER BY id) AS row,
                   1000 * CAST(round(1000 * coalesce(unixepoch(created_at, 'subsec'), 0)) AS INTEGER) AS wall
            FROM trials)) AS timed
WHERE timed.id = trials.id;
CREATE UNIQUE INDEX trials_identity ON trials (run, clock);
CREATE INDEX trials_clock ON trials (clock);

-- A failed trial that no longer counts, because someone said so: its kernel is tried again. The trial stays.
CREATE TABLE releases (
    trial       INTEGER PRIMARY KEY REFERENCES trials (id),
    released_at TEXT NOT NULL, -- UTC, RFC 3339
    command     TEXT NOT NULL
) STRICT;

-- A trial that was not run, but taken from one of another source, NVRTC or driver whose cubin is the same.
CREATE TABLE carried (
    trial  INTEGER PRIMARY KEY REFERENCES trials (id),
    origin INTEGER NOT NULL REFERENCES trials (id)
) STRICT;

-- Boards of one model under one driver measure for each other: of each such set the first row stands for all. Which board
-- a trial ran on stays in its run.
CREATE VIEW platforms AS
SELECT id AS board, min(id) OVER (PARTITION BY name, sms, driver) AS environment FROM environments;

-- Trials that count, with the platform they ran on.
CREATE VIEW standing_trials AS
SELECT t.*, p.environment
FROM trials AS t
JOIN runs AS r ON r.id = t.run
LEFT JOIN platforms AS p ON p.board = r.environment
WHERE t.id NOT IN (SELECT trial FROM releases);

-- The trial in force of each key: kernel (target, id, source, NVRTC), shape, split, platform. A failure holds until it is
-- released; then what ran itself before what was carried over; then the trial with the most samples, a prediction (none)
-- only where nothing was measured; of equal ones the latest. Samples are numbered from 0, so the last number says how many there are, and is found without counting.
DROP VIEW current_trials;
CREATE VIEW current_trials AS
SELECT * FROM (
    SELECT *, row_number() OVER (
               PARTITION BY kernel, shape, split, environment
               ORDER BY outcome NOT IN ('timed', 'compiled_only', 'emulated') AND stage IS NOT 'compile' DESC,
                        id IN (SELECT trial FROM carried),
                        (SELECT max(idx) FROM samples WHERE trial = t.id) DESC, id DESC
           ) AS age
    FROM standing_trials AS t
)
WHERE age = 1;

-- The failures that keep a kernel out of a tune: those that quarantine it, and those at every shape. Compilers that
-- crashed or were late bar nothing: they run again.
CREATE VIEW barring_trials AS
SELECT * FROM standing_trials
WHERE outcome IN ('wrong', 'faulted')
   OR (outcome IN ('compile_failed', 'launch_failed') AND shape IS NULL)
   OR (outcome IN ('crashed', 'timeout') AND stage <> 'compile');
