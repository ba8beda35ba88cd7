// Reads the service. A view asks again and again while it is shown; what it shows is never older than it says.

export class Failure extends Error {}

async function answer(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, cache: "no-store" });
  } catch {
    throw new Failure("The service does not answer.");
  }
  let body;
  try {
    body = await response.json();
  } catch {
    throw new Failure(`The service answered ${response.status} with something unreadable.`);
  }
  if (!response.ok) throw new Failure(body.Error ?? `The service answered ${response.status}.`);
  return body;
}

export const get = (path, query = {}, signal = undefined) => {
  const fields = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(fields).toString();
  return answer(text ? `${path}?${text}` : path, { signal });
};

export const post = (path, document, signal = undefined) =>
  answer(path, { method: "POST", body: JSON.stringify(document), headers: { "Content-Type": "application/json" }, signal });

const EVERY = 1000;
const SLOWEST = 10_000;

/** Calls `ask` at once and then every second, one at a time; slower after failures and on a slow link, and not while
 *  the page is hidden. */
export function repeat(ask, told) {
  let stopped = false;
  let timer = 0;
  let failures = 0;
  async function turn() {
    clearTimeout(timer);
    if (stopped || document.hidden) return;
    const started = performance.now();
    try {
      await ask();
      failures = 0;
      told(null);
    } catch (error) {
      failures += 1;
      told(error);
    }
    const took = performance.now() - started;
    const pause = failures ? Math.min(SLOWEST, EVERY * 1.6 ** failures) : Math.min(SLOWEST, Math.max(EVERY, 3 * took));
    if (!stopped) timer = setTimeout(turn, pause);
  }
  const woken = () => { if (!document.hidden) turn(); };
  document.addEventListener("visibilitychange", woken);
  turn();
  return {
    now: turn,
    stop() {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", woken);
    },
  };
}
