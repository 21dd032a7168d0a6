// Questions to the server. Of questions of one kind only the newest matters: an answer that comes
// after a newer question was asked is dropped.

let token = "";
const newest = {};

export function useToken(given) {
  token = given;
}

export async function ask(path, question, kind = path) {
  const turn = (newest[kind] = (newest[kind] ?? 0) + 1);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = { headers };
  if (question !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(question) });
  }
  let response, answer;
  try {
    response = await fetch(path, options);
    answer = await response.json();
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  if (newest[kind] !== turn) return null;
  if (!response.ok) throw new Error(answer.error ?? `The server refused (${response.status}).`);
  return answer;
}
