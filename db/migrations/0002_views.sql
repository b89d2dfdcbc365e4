-- What follows from it. Nothing here is stored: a better statistic is a new migration.

-- A kernel with its names and JSON in one row.
CREATE VIEW kernel_records AS
SELECT k.id AS kernel, k.target, v.kernel_id, p.key AS problem_key, p.json AS problem, v.json AS variant,
       k.source_hash, k.nvrtc, k.generator, k.cubin_hash, k.registers, k.static_shared, k.spill_stores,
       k.spill_loads, k.stack, k.cubin_bytes, k.instructions
FROM kernels AS k JOIN variants AS v ON v.id = k.variant JOIN problems AS p ON p.id = v.problem;

-- Median, minimum and interquartile range (nearest rank) of each timed trial. A subquery a column,
-- so that a reader of one column of few trials pays for these alone.
CREATE VIEW trial_times AS
SELECT id AS trial,
       (SELECT count(*) FROM samples WHERE trial = t.id) AS n,
       (SELECT min(microseconds) FROM samples WHERE trial = t.id) AS min_us,
       (SELECT avg(microseconds) FROM (
           SELECT microseconds, row_number() OVER (ORDER BY microseconds) AS place, count(*) OVER () AS n
           FROM samples WHERE trial = t.id
       ) WHERE place IN ((n + 1) / 2, n / 2 + 1)) AS median_us,
       (SELECT max(microseconds) - min(microseconds) FROM (
           SELECT microseconds, row_number() OVER (ORDER BY microseconds) AS place, count(*) OVER () AS n
           FROM samples WHERE trial = t.id
       ) WHERE place IN ((n + 3) / 4, (3 * n + 3) / 4)) AS iqr_us
FROM trials AS t
WHERE outcome = 'timed';

-- The latest trial of each key: kernel (target, id, source, NVRTC), shape, split, environment.
CREATE VIEW current_trials AS
SELECT * FROM (
    SELECT t.*, r.environment,
           row_number() OVER (PARTITION BY t.kernel, t.shape, t.split, r.environment ORDER BY t.id DESC) AS age
    FROM trials AS t JOIN runs AS r ON r.id = t.run
)
WHERE age = 1;

-- The kernels in force: of each id the source and NVRTC that a run used last, and of each problem
-- only those of the nvkv and NVRTC versions that last tuned it. The rest is stale: kept, and out.
CREATE VIEW live_kernels AS
SELECT id FROM (
    SELECT k.id, r.generator, r.nvrtc,
           row_number() OVER (PARTITION BY k.target, k.variant ORDER BY k.seen_run DESC, k.id DESC) AS age,
           first_value(r.generator) OVER latest AS live_generator,
           first_value(r.nvrtc) OVER latest AS live_nvrtc
    FROM kernels AS k JOIN variants AS v ON v.id = k.variant JOIN runs AS r ON r.id = k.seen_run
    WINDOW latest AS (PARTITION BY k.target, v.problem ORDER BY k.seen_run DESC, k.id DESC)
)
WHERE age = 1 AND generator = live_generator AND nvrtc = live_nvrtc;

-- Kernels that gave a wrong result, crashed or hung on a GPU at any shape: they win at no shape there.
CREATE VIEW quarantined AS
SELECT DISTINCT kernel, environment
FROM current_trials
WHERE outcome = 'wrong' OR (outcome IN ('crashed', 'timeout') AND stage <> 'compile');

-- The fastest timed trial of each target, environment, problem and shape. Of equal medians the
-- default's wins, then the kernel id decides, then the split. `beats_default` holds where the medians
-- differ beyond noise: for a normal spread a median's standard error is 1.253 sigma / sqrt(n) with
-- sigma = IQR / 1.349, so at 95 % the squared difference exceeds (1.96 * 1.253 / 1.349)^2 = 3.31 times
-- the sum of IQR^2 / n.
CREATE VIEW winners AS
WITH candidates AS (
    SELECT t.id AS trial, t.run, t.kernel, t.shape, t.split, t.is_default, t.environment,
           k.target, v.problem, v.kernel_id, s.key AS split_key, m.median_us
    FROM current_trials AS t
    JOIN kernels AS k ON k.id = t.kernel
    JOIN variants AS v ON v.id = k.variant
    JOIN trial_times AS m ON m.trial = t.id
    LEFT JOIN splits AS s ON s.id = t.split
    WHERE t.outcome = 'timed' AND t.environment IS NOT NULL
      AND t.kernel IN (SELECT id FROM live_kernels)
      AND (t.kernel, t.environment) NOT IN (
          SELECT kernel, environment FROM quarantined WHERE environment IS NOT NULL
      )
),
ranked AS (
    SELECT *,
           row_number() OVER (
               PARTITION BY target, environment, problem, shape
               ORDER BY median_us, is_default DESC, kernel_id, split_key
           ) AS place,
           first_value(CASE WHEN is_default THEN trial END) OVER (
               PARTITION BY target, environment, problem, shape ORDER BY is_default DESC, trial DESC
           ) AS default_trial
    FROM candidates
)
SELECT w.trial, w.run, w.kernel, w.shape, w.split, w.is_default, w.environment, w.target, w.problem,
       m.median_us, m.min_us, m.iqr_us, m.n, d.median_us AS default_median_us,
       d.median_us > m.median_us AND (d.median_us - m.median_us) * (d.median_us - m.median_us)
           > 3.31 * (m.iqr_us * m.iqr_us / m.n + d.iqr_us * d.iqr_us / d.n) AS beats_default
FROM ranked AS w
JOIN trial_times AS m ON m.trial = w.trial
LEFT JOIN trial_times AS d ON d.trial = w.default_trial
WHERE w.place = 1;

-- The same by a model's time, for kernels that were compiled only. Predictions, never measurements;
-- a kernel that failed on any GPU is not among them.
CREATE VIEW predicted_winners AS
WITH candidates AS (
    SELECT t.id AS trial, t.run, t.kernel, t.shape, t.split, t.is_default, t.predicted_us,
           k.target, v.problem, v.kernel_id, s.key AS split_key
    FROM current_trials AS t
    JOIN kernels AS k ON k.id = t.kernel
    JOIN variants AS v ON v.id = k.variant
    LEFT JOIN splits AS s ON s.id = t.split
    WHERE t.outcome = 'compiled_only'
      AND t.kernel IN (SELECT id FROM live_kernels)
      AND t.kernel NOT IN (SELECT kernel FROM quarantined)
),
ranked AS (
    SELECT *,
           row_number() OVER (
               PARTITION BY target, problem, shape
               ORDER BY predicted_us, is_default DESC, kernel_id, split_key, trial DESC
           ) AS place,
           first_value(CASE WHEN is_default THEN predicted_us END) OVER (
               PARTITION BY target, problem, shape ORDER BY is_default DESC, trial DESC
           ) AS default_predicted_us
    FROM candidates
)
SELECT trial, run, kernel, shape, split, is_default, target, problem, predicted_us, default_predicted_us
FROM ranked
WHERE place = 1;
