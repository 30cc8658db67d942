-- The two countries that have ordered most. `revenue` is the other view.
SELECT country, total_cents
FROM revenue
ORDER BY total_cents DESC, country
LIMIT 2
