// A program to check: meancap conformance check --command "node conformance/example.mjs"
// It reads a case per line and writes {"velocity": [[...]]}, or {"not run": "why"}.
import { createInterface } from 'node:readline';

const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);

function velocity({ t, scale, gamma, form, convention }, x, c, u) {
  const k = convention === 'noise at 1' ? -t : 1 - t; // the posterior mean is x + k v
  const mean = c.map((v, i) => x[i] + k * v), gap = c.map((v, i) => k * (v - u[i]));
  const [a, b, q] = [dot(gap, gap), dot(mean, gap), dot(mean, mean)];
  let beta = scale - 1;
  if (a > 0 && gamma < Infinity) {
    const room = form === 'ball' ? Math.sqrt(b * b + (gamma - 1) * (gamma + 1) * a * q) - b : (gamma - 1) * Math.sqrt(q * a);
    beta = Math.min(beta, room / a);
  }
  return c.map((v, i) => v + beta * (v - u[i]));
}

for await (const line of createInterface({ input: process.stdin })) {
  const q = JSON.parse(line);
  const numbers = (sample) => sample.map(Number); // "nan" and "inf" are texts in JSON
  const answer = q.method ? { 'not run': 'the cap only' } : {
    velocity: q.x.map((x, i) => velocity({ ...q, gamma: q.gamma === 'inf' ? Infinity : q.gamma }, x, numbers(q.v_c[i]), numbers(q.v_u[i]))),
  };
  console.log(JSON.stringify(answer)); // which writes NaN as null
}
