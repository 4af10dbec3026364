// The cap at one state of the plane, in closed form: what the library computes, for a picture that follows the
// pointer. A test compares every number with `meancap`.
//
//   x = (1 - t) noise + t data,   m_k = E[data | x, component k] = mu_k + (t std^2 / v) (x - t mu_k)
//   v = (1 - t)^2 + (t std)^2,    chance of k  ~  w_k exp(-|x - t mu_k|^2 / 2v)

const length = ([x, y]) => Math.hypot(x, y);
const between = (a, b, s) => a.map((v, i) => v + s * (b[i] - v));

function mean(x, t, components, std) {
  const v = (1 - t) ** 2 + (t * std) ** 2;
  const known = components.filter(([, , weight]) => weight > 0);
  const logs = known.map(([a, b, weight]) => Math.log(weight) - ((x[0] - t * a) ** 2 + (x[1] - t * b) ** 2) / (2 * v));
  const most = Math.max(...logs);
  const odds = logs.map((one) => Math.exp(one - most));
  const total = odds.reduce((sum, one) => sum + one, 0);
  return [0, 1].map((i) => known.reduce((sum, mu, k) => (
    sum + (odds[k] / total) * (mu[i] + ((t * std * std) / v) * (x[i] - t * mu[i]))), 0));
}

// The largest s in [0, 1] with |y + s g| <= gamma |y|, as in `meancap.operation.fraction`.
export function share(y, g, gamma) {
  const size = length(g);
  if (size === 0) return 1;
  const along = (y[0] * g[0] + y[1] * g[1]) / size;
  const room = length(y) * Math.sqrt((gamma - 1) * (gamma + 1));
  const reach = Math.hypot(along, room);
  return Math.min(1, along > 0 ? (room / size) * (room / (along + reach)) : (reach - along) / size);
}

// What guidance does with a sample that is at x at time t: the means, the share s that the cap keeps, and the
// scale that is left of lambda.
export function atSample({ components, std, eta }, x, t, lambda, gamma) {
  const m_u = mean(x, t, components, std);
  const m_c = between(mean(x, t, components.filter((one) => one[3]), std), m_u, eta);
  const asked = between(m_u, m_c, lambda);
  const s = share(m_c, asked.map((v, i) => v - m_c[i]), gamma);
  return {
    m_u, m_c, asked, m: between(m_c, asked, s), share: s, scale: 1 + s * (lambda - 1),
    radius: gamma * length(m_c), ratio: length(asked) / length(m_c),
  };
}
