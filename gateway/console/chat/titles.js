// Titles by the model: once a conversation has its first answer and its model is idle, a short request asks for a title.
// Only where that is wished, and only for conversations that are answered while the page is open.
import { effect, untracked } from "../vendor/preact.js";
import { byId, call } from "../core/server.js";
import { chosen, titleOf } from "./conversation.js";
import { answering, conversations, finishedHere, rename, titled } from "./room.js";

const LONGEST = 1500; // characters of the question, and of the answer, that are shown to the model
const MOST_TOKENS = 24;
const ASK = "Write a title for this conversation: at most six words, in its language, without quotation marks. Answer with the title alone.";

const tried = new Set(); // once each, whatever came of it

effect(() => {
  if (!titled.value) return;
  const next = (conversations.value ?? []).find((one) => !tried.has(one.id) && isUntitled(one) && finishedHere.has(chosen(one.turns[1].lanes[0]).id) && !answering.value.has(one.id));
  const model = next && answerOf(next).model;
  if (model && isIdle(byId.value.get(model))) untracked(() => entitle(next, model));
});

const answerOf = ({ turns: [, answer], models: [first] }) => ({ ...chosen(answer.lanes[0]), model: chosen(answer.lanes[0]).model ?? first });

/** Whether it has an answer, and the title that its first words gave it. */
function isUntitled({ title, turns: [said, answer] }) {
  return Boolean(said?.content) && title === titleOf(said.content) && answer?.role === "assistant" && Boolean(chosen(answer.lanes[0]).content);
}

/** A model that would have to be loaded, or that others wait for, is left alone. */
const isIdle = (it) => Boolean(it) && (it.remote || it.state === "loaded") && !it.in_use && !it.waiting;

/** Without Markdown's signs, quotation marks around it and a full stop. */
const bare = (title) => title.replace(/[*`#]/g, "").replace(/^["'“„«\s]+|["'”“».\s]+$/g, "");

async function entitle(conversation, model) {
  tried.add(conversation.id);
  const [{ content: question }] = conversation.turns;
  const text = `${ASK}\n\nQuestion: ${question.slice(0, LONGEST)}\n\nAnswer: ${answerOf(conversation).content.slice(0, LONGEST)}`;
  const body = { model, messages: [{ role: "user", content: text }], max_tokens: MOST_TOKENS, temperature: 0.2, chat_template_kwargs: { enable_thinking: false } };
  const answer = await call("POST", "/v1/chat/completions", body).catch(() => null); // a title is worth no message
  const title = bare(titleOf(answer?.choices?.[0]?.message?.content ?? ""));
  const now = conversations.value.find((one) => one.id === conversation.id);
  if (title && now?.title === conversation.title) rename(now, title); // it may have been renamed meanwhile
}
