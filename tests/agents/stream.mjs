// A conversation in Node.js, streamed: asks, adds what was called for, asks again.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const { messages, tools } = JSON.parse(readFileSync(process.env.ARL_TASK_FILE));
const openai = new OpenAI({ maxRetries: 0 });
const usage = [];
for (let turn = 0; turn < 2; turn++) {
  const stream = openai.chat.completions.stream({
    model: process.env.ARL_MODEL,
    messages,
    tools,
    stream_options: { include_usage: true },
  });
  const { choices: [{ message }], usage: counted } = await stream.finalChatCompletion();
  usage.push([counted.prompt_tokens, counted.completion_tokens]);
  messages.push(message);
  for (const { id, function: call } of message.tool_calls ?? []) {
    const { a, b } = JSON.parse(call.arguments);
    messages.push({ role: "tool", tool_call_id: id, content: `${a + b}` });
  }
}
console.log(JSON.stringify({ text: messages.at(-1).content, usage }));
