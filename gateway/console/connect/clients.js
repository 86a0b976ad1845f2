// How each client is configured, and how to try what it will do. A table: a client more is an entry more.
import { call } from "../core/server.js";

/** @typedef {{server: string, key: string, model: string}} Place
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
  {
    name: "agents", api: "anthropic", title: "Coding agents, Anthropic’s API", intro: "Claude Code and others that speak Anthropic’s messages. They want a context of 64k tokens or more.",
    steps: () => [],
    codeName: "shell",
    code: ({ server, key, model }) => `export ANTHROPIC_BASE_URL=${server}
export ANTHROPIC_AUTH_TOKEN=${key || NO_KEY}
export ANTHROPIC_MODEL=${quoted(model)}
export ANTHROPIC_SMALL_FAST_MODEL=${quoted(model)}
claude`,
    test: async ({ model }) => {
      const answer = await call("POST", "/v1/messages", { model, messages: HELLO, max_tokens: 8 });
      return `${answer.model} answered with ${counted(answer.usage.output_tokens, "token")}.`;
    },
  },
  {
    name: "agents-openai", api: "openai", title: "Coding agents, OpenAI’s API", intro: "Aider, Cline, Continue, OpenCode and others.",
    steps: () => [],
    codeName: "shell",
    code: ({ server, key, model }) => `export OPENAI_API_BASE=${server}/v1
export OPENAI_BASE_URL=${server}/v1
export OPENAI_API_KEY=${key || NO_KEY}
aider --model ${quoted(`openai/${model}`)}`,
    test: chatTest,
  },
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

/** A word of a shell. */
export const quoted = (text) => (/^[\w./:@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
