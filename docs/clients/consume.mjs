// Add and handle jobs with Node 20 (18.17 works too), without any package.
//
//   node consume.mjs add order:1042 3    adds a job that is due in one second and takes three seconds
//   node consume.mjs                     handles due jobs until SIGTERM or Ctrl-C
//
// Set DELAYTASKS_URL (https://tasks.example.com/api/queue/), DELAYTASKS_TOKEN and TOPIC in the environment.

import { setTimeout as sleep } from 'node:timers/promises'

const { DELAYTASKS_URL: url, DELAYTASKS_TOKEN: token, TOPIC: topic } = process.env
if (!url || !token || !topic) throw new Error('Set DELAYTASKS_URL, DELAYTASKS_TOKEN and TOPIC.')

class Refused extends Error {} // the server refused the command
class Unavailable extends Error { // the server is unavailable; try again after `seconds`
  constructor(message, seconds = 2) {
    super(message)
    this.seconds = seconds
  }
}

// Do the work. It may run twice, so make it idempotent. Errors are stored with the job.
// `lost` is aborted when the lease is lost: another consumer may have the job.
async function handle(job, lost) {
  console.log(`began with ${job.id}, attempt ${job.attempt}`)
  const { seconds } = job.value
  if (!(seconds >= 0)) throw new TypeError('the body has no seconds')
  await sleep(seconds * 1000, undefined, { signal: lost })
  console.log(`did the work of ${job.id}`)
}

// Send a command and return the answer. Throws Refused or Unavailable; any other error if a retry cannot help.
async function send(command, stop) {
  const timeout = AbortSignal.timeout(((command.wait ?? 0) + 10) * 1000)
  let response, text
  try {
    response = await fetch(url, {
      method: 'POST',
      headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
      body: JSON.stringify(command),
      redirect: 'manual', // send the token only to this URL
      signal: stop ? AbortSignal.any([timeout, stop]) : timeout,
    })
    text = await response.text()
  } catch (error) {
    throw new Unavailable(error.cause?.message ?? error.message)
  }
  const { status, headers } = response
  const answer = parsed(text)
  const reason = answer.error ?? `HTTP ${status}`
  if (status === 429 || status >= 500) throw new Unavailable(reason, Number(headers.get('Retry-After')) || 2)
  if (status === 401 || status === 403 || !('success' in answer)) throw new Error(`${status}: ${reason}`)
  if (!answer.success) throw new Refused(reason)
  return answer
}

function parsed(text) {
  try {
    return Object(JSON.parse(text))
  } catch {
    return {} // not the queue but a proxy answered
  }
}

// Report the outcome of a job; retry while the server is unavailable, until the lease is lost.
async function report(command, lost) {
  for (;;) {
    try {
      return await send(command)
    } catch (error) {
      if (!(error instanceof Unavailable) || lost.aborted) throw error
      await sleep(error.seconds * 1000)
    }
  }
}

// Touch a job at a third of its TTR until `done`, or until the lease is lost.
async function renewLease(jobFields, TTR, done, markLost) {
  let expires = Date.now() + TTR * 1000
  for (;;) {
    await sleep((TTR * 1000) / 3, undefined, { signal: done }).catch(() => {})
    if (done.aborted) return
    const sentAt = Date.now()
    try {
      await send({ command: 'touch', ...jobFields }, AbortSignal.timeout(Math.ceil(TTR * 333)))
      expires = sentAt + TTR * 1000
    } catch (error) {
      if (!(error instanceof Unavailable) || Date.now() > expires) return markLost(error)
    }
  }
}

// What the server accepts as an error: printable and not too long. The cut may leave half a character, which is then
// replaced.
const printable = (error) => String(error).slice(0, 4000).replace(/[^\P{C}\n\t]/gu, ' ') || 'failed'

async function work(job) {
  const jobFields = { id: job.id, topic, job: job.job, attempt: job.attempt } // the fencing token
  const done = new AbortController()
  const lost = new AbortController()
  const renewal = renewLease(jobFields, job.TTR, done.signal, (error) => lost.abort(error))
  try {
    let outcome = { command: 'finish' }
    try {
      await handle(job, lost.signal)
    } catch (error) {
      outcome = { command: 'release', error: printable(error) } // after the topic's backoff
    }
    await report({ ...outcome, ...jobFields }, lost.signal)
    console.log(`${outcome.command}: ${job.id}, attempt ${job.attempt}`)
  } catch (error) {
    if (!(error instanceof Refused) && !(error instanceof Unavailable)) throw error
    console.log(`lease lost: ${error.message}`)
  } finally {
    done.abort()
    await renewal
  }
}

async function consume() {
  const stop = new AbortController()
  for (const name of ['SIGTERM', 'SIGINT']) process.once(name, () => stop.abort())
  console.log(`waiting for ${topic}`)
  while (!stop.signal.aborted) {
    try {
      const job = await send({ command: 'pop', topic, wait: 30 }, stop.signal)
      if (job.id !== '') await work(job) // empty if the queue is empty
    } catch (error) {
      if (stop.signal.aborted) break // a job reserved at this moment is free again after its TTR at the latest
      if (!(error instanceof Unavailable)) throw error
      console.log(`unavailable: ${error.message}`)
      await sleep(error.seconds * (1 + Math.random() / 5) * 1000, undefined, { signal: stop.signal }).catch(() => {})
    }
  }
  console.log('stopped')
}

const [verb, id, seconds] = process.argv.slice(2)
if (verb === 'add') {
  if (!id) throw new Error('node consume.mjs add ID [SECONDS]')
  await send({ command: 'add', topic, id, delay: 1, TTR: 60, body: { seconds: Number(seconds ?? 0) } })
  console.log(`added ${id}, due in 1 s`)
} else {
  await consume()
}
