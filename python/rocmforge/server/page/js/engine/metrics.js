// Reads what Prometheus' text format says, as far as the page shows it.

/**
 * The buckets of a model's histogram, over all other labels.
 *
 * @returns {{bound: number, count: number}[]} counts up to each bound, ascending
 */
export function histogram(text, name, model) {
  const line = new RegExp(`^${name}_bucket\\{((?:.*,)?le="([^"]+)".*)\\} (\\S+)`, "gm");
  // As Prometheus' format writes the value of a label.
  const label = `model_name="${model.replace(/[\\"]/g, "\\$&")}"`;
  const counts = new Map();
  for (const [, labels, bound, count] of text.matchAll(line)) {
    if (!labels.includes(label)) continue;
    const key = bound === "+Inf" ? Infinity : Number(bound);
    counts.set(key, (counts.get(key) ?? 0) + Number(count));
  }
  return Array.from(counts, ([bound, count]) => ({ bound, count })).sort((one, other) => one.bound - other.bound);
}

/** What has been added to a histogram since an earlier reading. */
export function since(now, before) {
  return now.map(({ bound, count }, index) => ({ bound, count: count - (before[index]?.count ?? 0) }));
}

/** An estimate of a quantile, from 0 to 1, as Prometheus makes it: linear inside of a bucket; null without counts. */
export function quantile(buckets, share) {
  const total = buckets.at(-1)?.count ?? 0;
  if (total <= 0) return null;
  const rank = share * total;
  const index = buckets.findIndex(({ count }) => count >= rank);
  const low = index === 0 ? { bound: 0, count: 0 } : buckets[index - 1];
  const high = buckets[index];
  if (high.bound === Infinity) return low.bound;
  return low.bound + (high.bound - low.bound) * ((rank - low.count) / Math.max(1, high.count - low.count));
}
