// What the TypeScript client does with a real stack, in Node and in a browser alike: the test judges what this returns.
export async function drive({ HermesClient, RefusedError, unwrap }, { url, cutUrl, key, script, sameKey }) {
  const client = new HermesClient(url, { apiKey: key });
  const cut = new HermesClient(`${cutUrl}/`, { apiKey: key, patienceS: 120 });
  const runId = await client.submit(script, { tags: ["ts"] }, sameKey);
  const events = [];
  for await (const told of cut.toldEvents(runId)) events.push(told);
  const replayed = [];
  for await (const told of client.toldEvents(runId)) replayed.push(told);
  const later = [];
  for await (const event of client.events(runId, { after: replayed[0].id })) later.push(event);
  const tree = [];
  for await (const told of client.treeEvents(runId)) tree.push(told.event);

  const stopping = new AbortController();
  let aborted = "";
  try {
    for await (const { event } of client.changes({ signal: stopping.signal })) stopping.abort(new Error(event.event));
  } catch (error) {
    aborted = error.message;
  }
  const refused = await client.api.getRun({ path: { run_id: "run_doesnotexist" } });
  const thrown = await unwrap(client.api.getRun({ path: { run_id: "run_doesnotexist" } })).catch((error) => error);
  const streamRefused = await client.events("run_doesnotexist").next().catch((error) => error);
  const withoutKey = await new HermesClient(url).submit("hello").catch((error) => error);
  const unavailable = await new HermesClient("http://127.0.0.1:9", { patienceS: 0 }).submit("hello").catch((error) => error);
  return {
    runId,
    events,
    replayed,
    later: later.length,
    tree: tree.map((event) => event.event),
    sameRun: await client.submit(script, { tags: ["ts"] }, sameKey),
    ended: await client.wait(runId, { timeoutS: 5 }),
    listed: (await unwrap(client.api.listRuns({ query: { limit: 5 } }))).data.map((run) => run.run_id),
    aborted,
    refused: [refused.data, refused.response.status],
    thrown: [thrown instanceof RefusedError, thrown.status, thrown.code],
    streamRefused: [streamRefused.name, streamRefused.status],
    withoutKey: [withoutKey.name, withoutKey.status],
    unavailable: unavailable.name,
  };
}
