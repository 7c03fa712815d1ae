// Vercel's AI SDK: chat completions, or Responses with `responses` (`unstored`: without ids of
// items that the server has to know); streamed with `stream`.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
});
const name = process.env.ARL_MODEL;
const model = process.argv.includes("responses") ? openai.responses(name) : openai.chat(name);
const calculator = tool({
  description: "Do one arithmetic operation.",
  inputSchema: z.object({ expression: z.string(), digits: z.number().default(2) }),
  execute: async ({ expression, digits }) => `${expression} = ${expression.length}, ${digits} ✓`,
});
const messages = [];
let text = "";
const questions = [
  "Mia has 57 boxes with 22 cards in each box. How many cards?",
  "Ann has 490 eggs and loses 137. How many eggs are there? ✓",
];
for (const content of questions) {
  messages.push({ role: "user", content });
  const asked = { model, messages, tools: { calculator }, stopWhen: stepCountIs(5) };
  asked.system = "Solve the problem. Put the final answer in \\boxed{}.";
  if (process.argv.includes("unstored")) asked.providerOptions = { openai: { store: false } };
  const ask = process.argv.includes("stream") ? streamText : generateText;
  const found = await ask(asked);
  messages.push(...(await found.responseMessages));
  text = await found.text;
}
console.log(text);
