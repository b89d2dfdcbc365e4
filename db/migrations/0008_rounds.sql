-- The trial in force of each key, as before; of two that were measured, the one of more rounds, whatever the samples in
-- them: five rounds say how much a time differs from one to the next, and one round does not. So a database that was
-- measured under an older policy, in one long round, does not stand before the run-offs of a newer one that it is merged
-- with. Samples that were taken before rounds were kept are one round; a prediction has none.
--
-- Each trial is compared with the others of its key, by the index on it: samples are looked up only where there are others,
-- and a query that asks for one problem's trials reads no others. (A window over all trials would be computed whole.)
DROP VIEW current_trials;
CREATE VIEW current_trials AS
SELECT * FROM standing_trials AS t
WHERE NOT EXISTS (
    SELECT 1 FROM standing_trials AS o
    WHERE o.kernel = t.kernel AND o.shape IS t.shape AND o.split IS t.split AND o.environment IS t.environment
      AND o.id <> t.id
      AND (o.outcome NOT IN ('timed', 'compiled_only', 'emulated') AND o.stage IS NOT 'compile',
           o.id NOT IN (SELECT trial FROM carried),
           (SELECT count(*) FROM (SELECT 1 FROM samples WHERE trial = o.id GROUP BY measurement)),
           coalesce((SELECT max(idx) FROM samples WHERE trial = o.id), -1),
           o.id)
        > (t.outcome NOT IN ('timed', 'compiled_only', 'emulated') AND t.stage IS NOT 'compile',
           t.id NOT IN (SELECT trial FROM carried),
           (SELECT count(*) FROM (SELECT 1 FROM samples WHERE trial = t.id GROUP BY measurement)),
           coalesce((SELECT max(idx) FROM samples WHERE trial = t.id), -1),
           t.id)
);

-- As before, from the problem's variants on: SQLite keeps the order of a CROSS JOIN.
DROP VIEW contenders;
CREATE VIEW contenders AS
SELECT t.id AS trial, t.shape, t.split, t.is_default, t.environment, k.target, v.problem, v.kernel_id,
       (SELECT json_group_array(json(round)) FROM (
           SELECT json_group_array(microseconds) AS round FROM samples WHERE trial = t.id GROUP BY measurement
       )) AS rounds
FROM variants AS v
CROSS JOIN kernels AS k ON k.variant = v.id
CROSS JOIN current_trials AS t ON t.kernel = k.id
WHERE t.outcome = 'timed' AND t.environment IS NOT NULL
  AND k.id IN (SELECT id FROM live_kernels)
  AND (t.kernel, t.environment) NOT IN (
      SELECT kernel, environment FROM quarantined WHERE environment IS NOT NULL
  );
