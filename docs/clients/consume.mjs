// Adds and handles jobs with Node 20 (18.17 has what it needs) and nothing else.
//
//   node consume.mjs add order:1042 3    promises a job that is due in one second, and is three seconds of work
//   node consume.mjs                     handles what is due, until SIGTERM or Ctrl-C
//
// DELAYTASKS_URL=https://tasks.example.com/api/queue/, DELAYTASKS_TOKEN and TOPIC are in the environment.

import { setTimeout as sleep } from 'node:timers/promises'

const { DELAYTASKS_URL: url, DELAYTASKS_TOKEN: token, TOPIC: topic } = process.env
if (!url || !token || !topic) throw new Error('DELAYTASKS_URL, DELAYTASKS_TOKEN and TOPIC have to be set.')

class Refused extends Error {} // the server understood, and said no
class Later extends Error { // no answer for now; try again after `seconds`
  constructor(message, seconds = 2) {
    super(message)
    this.seconds = seconds
  }
}

// The work. It may be done twice, so doing it twice must do no harm. What it throws is kept with the job.
// `lost` is aborted when the job is not ours any more: somebody else may have begun with it.
async function handle(job, lost) {
  console.log(`began with ${job.id}, attempt ${job.attempt}`)
  const { seconds } = job.value
  if (!(seconds >= 0)) throw new TypeError('the body has no seconds')
  await sleep(seconds * 1000, undefined, { signal: lost })
  console.log(`did the work of ${job.id}`)
}

// The answer to a command. Throws Refused or Later; anything else when trying again is no use.
async function ask(command, stop) {
  const timeout = AbortSignal.timeout(((command.wait ?? 0) + 10) * 1000)
  let response, text
  try {
    response = await fetch(url, {
      method: 'POST',
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
      body: JSON.stringify(command),
      redirect: 'manual', // the token goes to this address alone
      signal: stop ? AbortSignal.any([timeout, stop]) : timeout,
    })
    text = await response.text()
  } catch (error) {
    throw new Later(error.cause?.message ?? error.message)
  }
  const { status, headers } = response
  const answer = parsed(text)
  const reason = answer.error ?? `HTTP ${status}`
  if (status === 429 || status >= 500) throw new Later(reason, Number(headers.get('Retry-After')) || 2)
  if (status === 401 || status === 403 || !('success' in answer)) throw new Error(`${status}: ${reason}`)
  if (!answer.success) throw new Refused(reason)
  return answer
}

function parsed(text) {
  try {
    return Object(JSON.parse(text))
  } catch {
    return {} // not the queue, but something before it
  }
}

// Tells how a job ended, again while the server is away, until the job is lost.
async function tell(command, lost) {
  for (;;) {
    try {
      return await ask(command)
    } catch (error) {
      if (!(error instanceof Later) || lost.aborted) throw error
      await sleep(error.seconds * 1000)
    }
  }
}

// Touches a job at a third of its TTR, until `done` or lost.
async function keep(about, TTR, done, lose) {
  let expires = Date.now() + TTR * 1000
  for (;;) {
    await sleep((TTR * 1000) / 3, undefined, { signal: done }).catch(() => {})
    if (done.aborted) return
    const asked = Date.now()
    try {
      await ask({ command: 'touch', ...about }, AbortSignal.timeout(Math.ceil(TTR * 333)))
      expires = asked + TTR * 1000
    } catch (error) {
      if (!(error instanceof Later) || Date.now() > expires) return lose(error)
    }
  }
}

// What the job's history can keep: printable, and not too long.
const readable = (error) => String(error).replace(/[^\P{C}\n\t]/gu, ' ').slice(0, 4000) || 'failed'

async function work(job) {
  const about = { id: job.id, topic, job: job.job, attempt: job.attempt } // the fence
  const done = new AbortController()
  const lost = new AbortController()
  const keeping = keep(about, job.TTR, done.signal, (error) => lost.abort(error))
  try {
    let end = { command: 'finish' }
    try {
      await handle(job, lost.signal)
    } catch (error) {
      end = { command: 'release', error: readable(error) } // after the topic's backoff
    }
    await tell({ ...end, ...about }, lost.signal)
    console.log(`${end.command}: ${job.id}, attempt ${job.attempt}`)
  } catch (error) {
    if (!(error instanceof Refused) && !(error instanceof Later)) throw error
    console.log(`not ours any more: ${error.message}`)
  } finally {
    done.abort()
    await keeping
  }
}

async function consume() {
  const stop = new AbortController()
  for (const name of ['SIGTERM', 'SIGINT']) process.once(name, () => stop.abort())
  console.log(`waiting for ${topic}`)
  while (!stop.signal.aborted) {
    try {
      const job = await ask({ command: 'pop', topic, wait: 30 }, stop.signal)
      if (job.id !== '') await work(job) // an empty queue is a success
    } catch (error) {
      if (stop.signal.aborted) break // a job that was reserved for us in this moment is free again, at the latest after its TTR
      if (!(error instanceof Later)) throw error
      console.log(`resting: ${error.message}`)
      await sleep(error.seconds * (1 + Math.random() / 5) * 1000, undefined, { signal: stop.signal }).catch(() => {})
    }
  }
  console.log('stopped')
}

const [verb, id, seconds] = process.argv.slice(2)
if (verb === 'add') {
  if (!id) throw new Error('node consume.mjs add ID [SECONDS]')
  await ask({ command: 'add', topic, id, delay: 1, TTR: 60, body: { seconds: Number(seconds ?? 0) } })
  console.log(`added ${id}, due in 1 s`)
} else {
  await consume()
}
