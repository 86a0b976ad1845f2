// A request that was looked at, taken elsewhere: to a shell as curl, and into the chat as a conversation.
import { emptyVersion, fresh, withAnswer, withResults, withUser } from "../chat/conversation.js";

/** JSON with its lines; other text as it is. */
export function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

/** A command for a shell; the key is a variable there. @param {{method: string, path: string, body: string}} seen */
export function asCurl({ method, path, body }, address, hasKeys) {
  const lines = [`curl -N -X ${method} '${quoted(address + path)}'`, "-H 'content-type: application/json'"];
  if (hasKeys) lines.push('-H "authorization: Bearer $KEY"');
  if (body) lines.push(`-d '${quoted(body)}'`);
  return lines.join(" \\\n  ");
}

const quoted = (text) => text.replaceAll("'", "'\\''");

const bodyOf = ({ body }) => { try { return JSON.parse(body); } catch { return null; } };

/** Whether its body has a conversation, or a prompt as text. */
export function canTalk(seen) {
  const body = bodyOf(seen);
  return Array.isArray(body?.messages) || body?.input !== undefined || typeof body?.prompt === "string";
}

/** It goes on in the chat, which is shown. */
export async function talkAbout(seen) {
  const { add, readConversations, show } = await import("../chat/room.js");
  await readConversations();
  const conversation = conversationOf(seen);
  add([conversation]);
  show(conversation);
}

/** The conversation that was sent, in OpenAI's, Anthropic's or the Responses' form, and the answer to it. Pure. */
export function conversationOf(seen) {
  const body = bodyOf(seen) ?? {};
  const messages = messagesOf(body);
  const system = [body.instructions ?? body.system, ...messages.filter((one) => ["system", "developer"].includes(one.role)).map((one) => one.content)];
  let conversation = fresh([seen.request.model || body.model], undefined, system.filter(Boolean).map(textOf).join("\n\n"));
  for (const message of messages) conversation = withMessage(conversation, message);
  const answer = seen.answers[0];
  return answer?.parts.length ? withAnswer(conversation, [versionOf(answer)]) : conversation;
}

function messagesOf(body) {
  if (Array.isArray(body.messages)) return body.messages;
  if (Array.isArray(body.input)) return body.input.filter((one) => one.role);
  return [{ role: "user", content: body.input ?? body.prompt ?? "" }];
}

function withMessage(conversation, message) {
  if (message.role === "user") return withUser(conversation, textOf(message.content), picturesOf(message.content));
  if (message.role === "tool") return withResults(conversation, [[{ id: message.tool_call_id ?? "", name: "", content: textOf(message.content) }]]);
  if (message.role !== "assistant") return conversation;
  const toolCalls = (message.tool_calls ?? []).map((one) => ({ id: one.id, name: one.function.name, arguments: one.function.arguments }));
  return withAnswer(conversation, [emptyVersion({ content: textOf(message.content), reasoning: message.reasoning_content ?? "", toolCalls, finish: "stop" })]);
}

const textOf = (content) => (typeof content === "string" ? content : (content ?? []).map((part) => part.text ?? "").join(""));
const picturesOf = (content) => (Array.isArray(content) ? content.map((part) => part.image_url?.url).filter(Boolean) : []);

function versionOf({ parts, finish }) {
  const joined = (kind) => parts.filter((part) => part.kind === kind).map((part) => part.text).join("");
  const toolCalls = parts.filter((part) => part.kind === "call").map((part) => ({ id: part.id ?? "", name: part.name ?? "", arguments: part.text }));
  return emptyVersion({ content: joined("content"), reasoning: joined("reasoning"), toolCalls, finish: finish ?? "stop" });
}
