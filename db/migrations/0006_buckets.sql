-- Buckets: the shapes of a problem at which a winner is chosen, each to serve the shapes nearer to it than to any other.
-- Rows are only added. Trials at other shapes are held out: they measure how well the buckets serve there, and win nothing.
CREATE TABLE buckets (
    target     TEXT    NOT NULL,
    problem    INTEGER NOT NULL REFERENCES problems (id),
    shape      INTEGER NOT NULL REFERENCES shapes (id),
    split_from INTEGER REFERENCES shapes (id), -- the bucket whose winner was too slow here; null: a tune was asked for it
    PRIMARY KEY (target, problem, shape)
) STRICT, WITHOUT ROWID;

-- Until now every shape was asked for.
INSERT INTO buckets (target, problem, shape)
SELECT DISTINCT k.target, v.problem, t.shape
FROM trials AS t
JOIN kernels AS k ON k.id = t.kernel
JOIN variants AS v ON v.id = k.variant
WHERE t.shape IS NOT NULL;
