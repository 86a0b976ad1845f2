// How each client is configured, and how to try what it will do. A table: a client more is an entry more.
import { call } from "../core/server.js";

/** @typedef {{server: string, key: string, model: string, context?: number}} Place
 * @typedef {{name: string, api: string, title: string, intro: string, steps: (place: Place) => (string | [string, string])[],
 *   code?: (place: Place) => string, codeName?: string, test: (place: Place) => Promise<string>}} Client */

const NO_KEY = "none";
const HELLO = [{ role: "user", content: "Say hello." }];

const chatTest = async ({ model }) => {
  const answer = await call("POST", "/v1/chat/completions", { model, messages: HELLO, max_tokens: 8 });
  return `${answer.model} answered with ${counted(answer.usage.completion_tokens, "token")}.`;
};

const listTest = (path, field) => async () => {
  const list = await call("GET", path);
  return `${counted(list[field].length, "model")} listed, as it asks for.`;
};

const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;

const messagesTest = async ({ model }) => {
  const answer = await call("POST", "/v1/messages", { model, messages: HELLO, max_tokens: 8 });
  return `${answer.model} answered with ${counted(answer.usage.output_tokens, "token")}.`;
};

/** A word of a shell, as Python's shlex.quote writes it. */
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

/** Lines for a shell: what `roundhouse launch NAME --print` prints (gateway/cli/launch.py). */
const shell = (variables, words) => [
  ...Object.entries(variables).map(([name, value]) => `export ${name}=${quoted(value)}`), words.map(quoted).join(" "),
].join("\n");

const WIDE = "It wants a context of 64k tokens or more.";

/** A coding agent. `settings`: its variables, and its command. */
const agent = (name, title, intro, settings, test = chatTest, api = "openai") => ({
  name, api, title, intro, steps: () => [], codeName: "shell",
  code: ({ key, ...place }) => shell(...settings({ ...place, key: key || NO_KEY })), test,
});

const KINDS = ["MODEL", "SMALL_FAST_MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL"];

const codexLines = ({ server, model, context }) => Object.entries({
  model, model_provider: "roundhouse", "model_providers.roundhouse.name": "Roundhouse", "model_providers.roundhouse.base_url": `${server}/v1`,
  "model_providers.roundhouse.env_key": "ROUNDHOUSE_KEY", "model_providers.roundhouse.wire_api": "responses", ...(context && { model_context_window: context }),
}).map(([name, value]) => `${name}=${JSON.stringify(value)}`);

const openCode = ({ server, model, context }) => {
  const limit = context && { limit: { context, output: Math.floor(context / 4) } };
  const provider = {
    npm: "@ai-sdk/openai-compatible", name: "Roundhouse", options: { baseURL: `${server}/v1`, apiKey: "{env:ROUNDHOUSE_KEY}" },
    models: { [model]: { name: model, ...limit } },
  };
  const named = `roundhouse/${model}`;
  return { provider: { roundhouse: provider }, model: named, small_model: named };
};

const AGENTS = [
  agent("claude", "Claude Code", WIDE, ({ server, key, model, context }) => [
    { ANTHROPIC_BASE_URL: server, ANTHROPIC_AUTH_TOKEN: key, ANTHROPIC_API_KEY: "", ...Object.fromEntries(KINDS.map((kind) => [`ANTHROPIC_${kind}`, model])),
      ...(context ? { CLAUDE_CODE_MAX_CONTEXT_TOKENS: String(context), CLAUDE_CODE_AUTO_COMPACT_WINDOW: String(context) } : {}) },
    ["claude"],
  ], messagesTest, "anthropic"),
  agent("codex", "Codex CLI", WIDE, (place) => [
    { ROUNDHOUSE_KEY: place.key }, ["codex", ...codexLines(place).flatMap((line) => ["-c", line])],
  ], async ({ model }) => {
    const answer = await call("POST", "/v1/responses", { model, input: HELLO, max_output_tokens: 8, store: false });
    return `${answer.model} answered with ${counted(answer.usage.output_tokens, "token")}.`;
  }),
  agent("opencode", "OpenCode", WIDE, (place) => [
    { ROUNDHOUSE_KEY: place.key, OPENCODE_CONFIG_CONTENT: JSON.stringify(openCode(place)) }, ["opencode"],
  ]),
  agent("aider", "Aider", "Cline, Continue and others take the same base URL.", ({ server, key, model }) => [
    { OPENAI_API_BASE: `${server}/v1`, OPENAI_API_KEY: key }, ["aider", "--model", `openai/${model}`],
  ]),
  agent("llm", "llm", "Simon Willison’s program for a terminal.", ({ server, key, model }) => [
    {}, ["llm", "openai", "endpoint", `${server}/v1`, "-m", model, ...(key === NO_KEY ? [] : ["--key", key])],
  ]),
];

/** @type {Client[]} */
export const CLIENTS = [
  {
    name: "openai", api: "openai", title: "openai client", intro: "Every program that takes an OpenAI base URL is set up the same way.",
    steps: ({ server, key, model }) => [["Base URL", `${server}/v1`], ["API key", key || NO_KEY], ["Model", model]],
    codeName: "Python",
    code: ({ server, key, model }) => `from openai import OpenAI

client = OpenAI(base_url="${server}/v1", api_key="${key || NO_KEY}")
answer = client.chat.completions.create(
    model=${JSON.stringify(model)},
    messages=[{"role": "user", "content": "Hello!"}],
)
print(answer.choices[0].message.content)`,
    test: chatTest,
  },
  {
    name: "sillytavern", api: "tabby", title: "SillyTavern, text completion", intro: "SillyTavern makes the prompt.",
    steps: ({ server, key, model }) => ["API: Text Completion", "API type: TabbyAPI", ["API URL", server], ["API key", key || NO_KEY], ["Model", model]],
    test: listTest("/v1/model/list", "data"),
  },
  {
    name: "sillytavern-chat", api: "openai", title: "SillyTavern, chat completion", intro: "The server makes the prompt, with the model’s own template.",
    steps: ({ server, key, model }) => ["API: Chat Completion", "Source: Custom (OpenAI-compatible)", ["Endpoint", `${server}/v1`], ["API key", key || NO_KEY], ["Model", model]],
    test: chatTest,
  },
  {
    name: "openwebui", api: "openai", title: "Open WebUI", intro: "Admin panel → Settings → Connections → OpenAI API → add a connection.",
    steps: ({ server, key }) => [["URL", `${server}/v1`], ["API key", key || NO_KEY], "Provider: llama.cpp, so that models can be loaded and ejected from the model menu",
      "From a container this host is host.docker.internal: name it in server.hosts, or set keys"],
    test: listTest("/v1/models", "data"),
  },
  ...AGENTS,
  {
    name: "ollama", api: "ollama", title: "Ollama’s clients", intro: "Programs that look for Ollama.",
    steps: () => [],
    codeName: "shell",
    code: ({ server, model }) => `export OLLAMA_HOST=${server}
ollama run ${quoted(model)}`,
    test: listTest("/api/tags", "models"),
  },
  {
    name: "curl", api: "openai", title: "curl", intro: "To see what the server itself says.",
    steps: () => [],
    codeName: "shell",
    code: ({ server, key, model }) => `curl ${server}/v1/chat/completions \\
  -H 'content-type: application/json' \\${key ? `\n  -H 'authorization: Bearer ${key}' \\` : ""}
  -d ${quoted(JSON.stringify({ model, messages: HELLO }))}`,
    test: chatTest,
  },
];
