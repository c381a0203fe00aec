// Asks for an answer, and puts what the server's events bring into its message.

import { ApiError } from "../api.js";
import { parameters } from "./settings.js";
import { splitThinking } from "./thinking.js";

// An answer with one of these states ended before the model ended it.
const EARLY_ENDS = new Set(["stopped", "interrupted", "length", "timeout", "abort", "failed"]);

/** The body of a request for an answer to a conversation's last message. */
export function answerBody(conversation, model) {
  return { model, messages: sent(conversation), ...parameters(conversation.settings) };
}

/** The body of a request that continues a conversation's last message. */
export function continuedBody(conversation, model) {
  const body = answerBody(conversation, model);
  const { thinking } = splitThinking(conversation.messages.at(-1));
  // The model continues from its own reasoning.
  if (thinking) body.messages.at(-1).reasoning_content = thinking;
  return { ...body, continue_final_message: true };
}

/** Whether an answer has a text and no proper end. */
export function canContinue(message) {
  return EARLY_ENDS.has(message.state) && splitThinking(message).answer.trim() !== "";
}

/** The messages as the model gets them: without reasoning, and without answers that have nothing in them. */
function sent(conversation) {
  const { system } = conversation.settings;
  const messages = conversation.messages
    .map((message) => ({
      role: message.role,
      content: message.role === "user" ? asked(message) : splitThinking(message).answer,
    }))
    .filter(({ content }) => content !== "");
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

/** The content of a message of the user: a text, or parts if there are images. */
function asked({ content, images }) {
  if (images === undefined) return content;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return content.trim() ? [...parts, { type: "text", text: content }] : parts;
}

/** Puts what an event brings into the message, and its figures into those of the request. */
export function takeEvent(message, figures, event, seconds) {
  if (event.usage) figures.usage = event.usage;
  const [choice] = event.choices;
  if (choice === undefined) return;
  const thinking = choice.delta.reasoning_content ?? "";
  const content = choice.delta.content ?? "";
  if (thinking || content) figures.firstToken ??= seconds();
  message.thinking += thinking;
  message.content += content;
  if (choice.finish_reason && choice.finish_reason !== "stop") message.finish = choice.finish_reason;
}

/** Tells in the message why its answer failed. */
export function failAnswer(message, error) {
  if (error.name === "AbortError") {
    message.state = "stopped";
    return;
  }
  message.state = "failed";
  const after = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  if (!(error instanceof ApiError)) console.error(error);
  message.error = { text: `${error.message}${after}`, param: error.param ?? null };
  if (error.code === "cannot_chat") {
    message.error.text = `${message.model} cannot chat. Choose another model, then regenerate this answer.`;
    message.error.final = true;
  }
}

/**
 * Puts the figures of a request into the message.
 *
 * @param {boolean} [continued] the message has figures of an earlier request, which are continued
 */
export function finishAnswer(message, { usage, firstToken }, seconds, continued = false) {
  if (!continued) {
    Object.assign(message, { seconds }, usage && { usage }, firstToken !== undefined && { firstToken });
    return;
  }
  // The time until the first new token is no time of writing.
  if (message.seconds !== undefined) message.seconds += seconds - (firstToken ?? seconds);
  if (message.usage && usage) {
    const tokens = message.usage.completion_tokens + usage.completion_tokens;
    message.usage = { ...message.usage, completion_tokens: tokens };
  } else {
    // An answer that was interrupted has no count of its tokens.
    delete message.usage;
  }
}
