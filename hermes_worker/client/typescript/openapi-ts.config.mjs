// Types and operations from the API's document, which .ci/typescript_client.py writes beside this file.
export default {
  input: "openapi.json",
  output: { path: "src/generated", module: { extension: ".js" } },
  plugins: [
    "@hey-api/typescript",
    "@hey-api/client-fetch",
    { name: "@hey-api/sdk", operations: { strategy: "single", containerName: "Operations" } },
  ],
};
