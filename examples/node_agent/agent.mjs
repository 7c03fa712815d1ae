// An agent in Node.js: the official openai package, and the environment's tools over MCP.
//
// npm install --prefix examples/node_agent
// arl train --env tools --agent command --agent.options.argv='["node", "examples/node_agent/agent.mjs"]'

import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { messages, tools } = JSON.parse(readFileSync(process.env.ARL_TASK_FILE));
const { ARL_MODEL: model, ARL_MCP_URL: url } = process.env;
const openai = new OpenAI(); // it reads OPENAI_BASE_URL and OPENAI_API_KEY
const env = new Client({ name: "node_agent", version: "1.0.0" });
if (url) await env.connect(new StreamableHTTPClientTransport(new URL(url)));

async function use({ name, arguments: text }) {
  try {
    const { content } = await env.callTool({ name, arguments: JSON.parse(text) });
    return content[0].text;
  } catch (error) {
    return `error: ${error.message}`; // no JSON: the model may try again
  }
}

for (let turn = 0; turn < 32; turn++) {
  const reply = await openai.chat.completions.create({ model, messages, ...(url && { tools }) });
  const { message } = reply.choices[0];
  messages.push(message);
  if (!message.tool_calls?.length) {
    console.log(message.content); // the final message: the last step
    break;
  }
  for (const { id, function: call } of message.tool_calls)
    messages.push({ role: "tool", tool_call_id: id, content: await use(call) });
}
await env.close();
