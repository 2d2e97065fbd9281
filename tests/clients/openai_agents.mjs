// Drives the sandbox client of @openai/agents-extensions against a server: `URL`, with the key in the environment.

import assert from 'node:assert/strict';
import { Manifest } from '@openai/agents-core/sandbox';
import { CloudflareSandboxClient } from '@openai/agents-extensions/sandbox/cloudflare';

const [url] = process.argv.slice(2);
const client = new CloudflareSandboxClient({ workerUrl: `${url}/`, apiKey: process.env.BRIDGE_KEY });

const manifest = new Manifest({
  entries: {
    'README.md': { type: 'file', content: '# hello\n' },
    src: { type: 'dir', children: { 'main.py': { type: 'file', content: "print('hi from main')\n" } } },
    'a@b:c,d$e&f;g=h#i.txt': { type: 'file', content: 'odd\n' },
  },
});

const session = await client.create({ manifest });
const run = (cmd, options = {}) => session.execCommand({ cmd, ...options });
const text = async (path) => new TextDecoder().decode(await session.readFile({ path }));

assert.equal(await session.running(), true);

let answer = await run('echo out; echo err >&2; pwd; exit 7');
assert.match(answer, /exited with code 7/);
for (const line of ['out', 'err', '/workspace']) assert.ok(answer.split('\n').includes(line), answer);
assert.match(await run('python3 main.py', { workdir: 'src' }), /hi from main/);

assert.equal(await text('README.md'), '# hello\n');
assert.equal(await text('a@b:c,d$e&f;g=h#i.txt'), 'odd\n');
assert.match(await run("cat 'a@b:c,d$e&f;g=h#i.txt'"), /odd/);
assert.equal(await session.pathExists('nothing'), false);
await assert.rejects(session.readFile({ path: 'nothing' }));

const editor = session.createEditor();
await editor.createFile({ type: 'create_file', path: 'patched.txt', diff: '+one\n+two\n' });
await editor.updateFile({ type: 'update_file', path: 'patched.txt', diff: '@@\n one\n-two\n+three\n' });
assert.deepEqual((await text('patched.txt')).split(/\s+/).filter(Boolean), ['one', 'three']);
await editor.deleteFile({ type: 'delete_file', path: 'patched.txt' });
assert.equal(await session.pathExists('patched.txt'), false);

let began = Date.now();
answer = await run('echo typed; tty; exit 3', { tty: true, yieldTimeMs: 10000 });
assert.ok(Date.now() - began < 5000, 'a command in a terminal is answered when it ends');
assert.match(answer, /exited with code 3/);
assert.match(answer, /typed\r?\n\/dev\/pts\//);
answer = await run('read line; echo got $line; sleep 60', { tty: true, yieldTimeMs: 250 });
const sessionId = Number(/session ID (\d+)/.exec(answer)[1]);
assert.match(await session.writeStdin({ sessionId, chars: 'words\n', yieldTimeMs: 1000 }), /got words/);
assert.match(await session.writeStdin({ sessionId, chars: '\u0003', yieldTimeMs: 5000 }), /exited with code 130/);

await run('mkdir tree; ln -s /workspace/README.md tree/link; ln README.md hard; mkfifo pipe');
const archive = await session.persistWorkspace();
await run('rm -rf README.md hard tree');
await session.hydrateWorkspace(archive);
assert.match(await run('cat tree/link hard'), /# hello\n# hello/);

const resumed = await client.resume(session.state);
assert.equal(new TextDecoder().decode(await resumed.readFile({ path: 'README.md' })), '# hello\n');

await session.delete();
assert.equal(await session.running(), false);
await assert.rejects(client.resume(session.state));
console.log('all is well');
process.exit(0);
