-- The trial in force of each key, as before; of two that were measured, the one of more rounds, whatever the samples in
-- them: five rounds say how much a time differs from one to the next, and one round does not. So a database that was
-- measured under an older policy, in one long round, does not stand before the run-offs of a newer one that it is merged
-- with. Samples that were taken before rounds were kept are one round; a prediction has none.
DROP VIEW current_trials;
CREATE VIEW current_trials AS
SELECT * FROM (
    SELECT *, row_number() OVER (
               PARTITION BY kernel, shape, split, environment
               ORDER BY outcome NOT IN ('timed', 'compiled_only', 'emulated') AND stage IS NOT 'compile' DESC,
                        id IN (SELECT trial FROM carried),
                        (SELECT count(*) FROM (SELECT 1 FROM samples WHERE trial = t.id GROUP BY measurement)) DESC,
                        (SELECT max(idx) FROM samples WHERE trial = t.id) DESC, id DESC
           ) AS age
    FROM standing_trials AS t
)
WHERE age = 1;
