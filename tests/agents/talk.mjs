// The conversation of talks.py in Node.js, streamed or not (TALK_STREAM).
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const { messages, tools } = JSON.parse(readFileSync(process.env.ARL_TASK_FILE));
const openai = new OpenAI({ maxRetries: 0 });
const said = [];

function workedOut(text) {
  try {
    return `${JSON.parse(text).expression.length} ✓`;
  } catch (error) {
    return `error: ${error.name} ✗`;
  }
}

for (let turn = 0; turn < Number(process.env.TALK_TURNS); turn++) {
  const asked = { model: process.env.ARL_MODEL, messages, tools };
  const reply = process.env.TALK_STREAM
    ? await openai.chat.completions
        .stream({ ...asked, stream_options: { include_usage: true } })
        .finalChatCompletion()
    : await openai.chat.completions.create(asked);
  const { message } = reply.choices[0];
  said.push([message.content ?? "", reply.usage.prompt_tokens, reply.usage.completion_tokens]);
  messages.push(message);
  const answers = (message.tool_calls ?? []).map(({ id, function: call }) => ({
    role: "tool", tool_call_id: id, content: workedOut(call.arguments),
  }));
  messages.push(...(answers.length ? answers : [{ role: "user", content: process.env.TALK_NEXT }]));
}
console.log(JSON.stringify(said));
