// Drives the JavaScript clients of E2B, unchanged, against a Cove server.

import assert from 'node:assert/strict'
import { CommandExitError, FileNotFoundError, FileType, Sandbox, TimeoutError } from 'e2b'
import { Sandbox as Interpreter } from '@e2b/code-interpreter'

const decoder = new TextDecoder()

async function withSandbox(work, options = {}) {
  const sandbox = await Sandbox.create(options)
  try {
    await work(sandbox)
  } finally {
    await sandbox.kill()
  }
}

async function life() {
  await assert.rejects(Sandbox.create('no-such-template'), /not found/)
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '00'.repeat(16) }))
  const sandbox = await Sandbox.create({ timeoutMs: 100_000, metadata: { team: 'ü & co' }, envs: { COLOUR: 'blue' } })
  const info = await sandbox.getInfo()
  assert.deepEqual([info.sandboxId, info.state, info.metadata], [sandbox.sandboxId, 'running', { team: 'ü & co' }])
  const found = await Sandbox.list({ query: { metadata: { team: 'ü & co' } } }).nextItems()
  assert.deepEqual(found.map((each) => each.sandboxId), [sandbox.sandboxId])
  await sandbox.setTimeout(1_000_000)
  assert.ok((await sandbox.getInfo()).endAt - info.endAt > 800_000)
  assert.equal((await sandbox.getMetrics()).length, 1)
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.isRunning(), false)
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run('echo $COLOUR')).stdout, 'blue\n')
  const snapshot = await again.createSnapshot()
  await withCopy(snapshot.snapshotId)
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  assert.equal(await sandbox.kill(), true)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
  assert.equal(await sandbox.isRunning(), false)
  await assert.rejects(sandbox.commands.run('true'))
}

async function withCopy(snapshot) {
  const copy = await Sandbox.create(snapshot)
  assert.equal(await copy.isRunning(), true)
  await copy.kill()
}

async function commands() {
  await withSandbox(async (sandbox) => {
    const seen = []
    const result = await sandbox.commands.run('echo out; echo err >&2; pwd', {
      cwd: '/tmp',
      onStdout: (text) => { seen.push(text) },
    })
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n/tmp\n', 'err\n', 0])
    assert.equal(seen.join(''), 'out\n/tmp\n')
    await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
    await assert.rejects(sandbox.commands.run('sleep 100', { timeoutMs: 500 }), TimeoutError)
    await assert.rejects(sandbox.commands.run('id', { user: 'root' }), /one user/)

    const cat = await sandbox.commands.run('cat; echo done', { background: true, stdin: true, timeoutMs: 0 })
    const listed = await sandbox.commands.list()
    assert.deepEqual(listed.map((each) => [each.pid, each.cmd]), [[cat.pid, '/bin/bash']])
    const second = await sandbox.commands.connect(cat.pid)
    await sandbox.commands.sendStdin(cat.pid, 'typed ü\n')
    await sandbox.commands.closeStdin(cat.pid)
    assert.equal((await cat.wait()).stdout, 'typed ü\ndone\n')
    assert.equal((await second.wait()).exitCode, 0)

    const sleeping = await sandbox.commands.run('sleep 1000', { background: true })
    assert.equal(await sleeping.kill(), true)
    await assert.rejects(sleeping.wait(), (error) => error.exitCode === -1)
    assert.equal(await sandbox.commands.kill(sleeping.pid), false)

    const big = await sandbox.commands.run("head -c 4000000 /dev/zero | tr '\\0' x")
    assert.equal(big.stdout.length, 4_000_000)
    const many = await Promise.all(Array.from({ length: 30 }, (_, n) => sandbox.commands.run(`echo ${n}`)))
    assert.deepEqual(many.map((each) => each.stdout), Array.from({ length: 30 }, (_, n) => `${n}\n`))
  })
}

async function files() {
  await withSandbox(async (sandbox) => {
    const { files } = sandbox
    assert.equal((await files.write('a/text', 'hello ü')).path, '/home/user/a/text')
    assert.equal(await files.read('a/text'), 'hello ü')
    assert.equal((await files.read('a/text', { format: 'bytes' })).length, 8)
    await files.write([{ path: 'with "quotes" ü', data: '1' }, { path: '/tmp/x/y', data: new Blob(['2']) }])
    assert.equal(await files.read('with "quotes" ü'), '1')
    assert.equal(await files.read('/tmp/x/y'), '2')
    const stream = new Blob(['x'.repeat(1_000_000)]).stream()
    await files.write('stream', stream)
    assert.equal((await files.getInfo('stream')).size, 1_000_000)
    assert.deepEqual((await files.list('a')).map((each) => [each.name, each.type]), [['text', FileType.FILE]])
    assert.deepEqual([await files.exists('a/text'), await files.exists('b')], [true, false])
    assert.deepEqual([await files.makeDir('d/e'), await files.makeDir('d/e')], [true, false])
    assert.equal((await files.rename('a/text', 'moved/text')).path, '/home/user/moved/text')
    await assert.rejects(files.read('a/text'), FileNotFoundError)
    await files.remove('moved')

    let told
    const created = new Promise((resolve) => { told = resolve })
    const watcher = await files.watchDir('d', (event) => { if (event.name === 'e/new') told(event) }, { recursive: true })
    await files.write('d/e/new', 'x')
    assert.equal((await created).type, 'create')
    await watcher.stop()
    await assert.rejects(files.watchDir('nowhere', () => {}), FileNotFoundError)

    await files.write('signed', 'by a signature')
    const url = await sandbox.downloadUrl('signed', { useSignatureExpiration: 1000 })
    assert.equal(await (await fetch(url)).text(), 'by a signature')
    assert.equal((await fetch(url.replace('path=signed', 'path=stream'))).status, 401)
    const form = new FormData()
    form.append('file', new Blob(['uploaded']), 'name')
    assert.equal((await fetch(await sandbox.uploadUrl('up'), { method: 'POST', body: form })).status, 200)
    assert.equal(await files.read('up'), 'uploaded')
  })
}

async function terminal() {
  await withSandbox(async (sandbox) => {
    let shown = ''
    const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => { shown += decoder.decode(data) } })
    await sandbox.pty.resize(pty.pid, { cols: 100, rows: 40 })
    await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit 5\n'))
    await assert.rejects(pty.wait(), (error) => error.exitCode === 5)
    assert.match(shown, /40 100/)
    const other = await sandbox.pty.create({ cols: 80, rows: 24, onData: () => {} })
    assert.equal(await sandbox.pty.kill(other.pid), true)
    assert.match(sandbox.getHost(3000), new RegExp(`^3000-${sandbox.sandboxId}\\.localhost:\\d+$`))
  })
}

async function git() {
  await withSandbox(async (sandbox) => {
    await sandbox.git.init('repository', { initialBranch: 'main' })
    await sandbox.files.write('repository/file', 'content')
    assert.deepEqual((await sandbox.git.status('repository')).fileStatus.map((each) => each.name), ['file'])
  })
}

async function code() {
  const sandbox = await Interpreter.create()
  try {
    const printed = []
    const run = await sandbox.runCode("x = 41\nprint('ü')\nx + 1", { onStdout: (message) => { printed.push(message.line) } })
    assert.deepEqual([run.text, run.error, run.logs.stdout], ['42', undefined, ['ü\n']])
    assert.deepEqual(printed, ['ü\n'])
    assert.equal((await sandbox.runCode('1/0')).error.name, 'ZeroDivisionError')
    const figure = await sandbox.runCode('import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()')
    assert.ok(figure.results.some((each) => each.png?.startsWith('iVBOR')))
    const context = await sandbox.createCodeContext({ cwd: '/tmp', language: 'js' })
    assert.equal((await sandbox.runCode('process.cwd()', { context })).text, '/tmp')
    assert.ok((await sandbox.listCodeContexts()).some((each) => each.id === context.id))
    await sandbox.restartCodeContext(context)
    await sandbox.removeCodeContext(context)
    await assert.rejects(sandbox.runCode('1', { context }))
    assert.equal((await sandbox.runCode('process.env.A', { language: 'js', envs: { A: 'a' } })).text, 'a')
    await assert.rejects(sandbox.runCode('while True: pass', { timeoutMs: 1000 }), TimeoutError)
    assert.equal((await sandbox.runCode('x')).text, '41')
    const chart = figure.results.find((each) => each.png).chart
    assert.deepEqual([chart.type, chart.elements[0].points], ['line', [[0, 1], [1, 2]]])
    assert.deepEqual((await sandbox.runCode('cd /tmp; pwd', { language: 'bash' })).logs.stdout, ['/tmp\n'])
    assert.deepEqual((await sandbox.runCode('echo $PWD', { language: 'bash' })).logs.stdout, ['/tmp\n'])
    await assert.rejects(sandbox.runCode('1', { language: 'r' }), /500/)
  } finally {
    await sandbox.kill()
  }
}

const began = Date.now()
for (const part of [life, commands, files, terminal, git, code]) {
  await part()
  console.log(`${part.name}: ${(Date.now() - began) / 1000} s`)
}
assert.deepEqual(await Sandbox.list().nextItems(), [])
console.log('all is well')
// The code interpreter keeps the timers of calls that failed, for a minute.
process.exit(0)
