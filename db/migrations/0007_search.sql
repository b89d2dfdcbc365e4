-- Which launches a run chose to time: `exhaustive` (all, as every run before this migration did), `halving` or `model`.
ALTER TABLE runs ADD COLUMN search TEXT NOT NULL DEFAULT 'exhaustive';
