// One job from its creation to its end over REST. The types are generated from the OpenAPI document.
//
//   node rest.js order:1042
//
// Set DELAYTASKS_URL (https://tasks.example.com/api/queue/), DELAYTASKS_TOKEN and TOPIC in the environment.

import createClient from 'openapi-fetch'
import type { components, paths } from './delaytasks.js'

type Schemas = components['schemas']

const { DELAYTASKS_URL: url, DELAYTASKS_TOKEN: token, TOPIC: topic } = process.env
const key = process.argv[2]
if (!url || !token || !topic || !key) throw new Error('Set DELAYTASKS_URL, DELAYTASKS_TOKEN and TOPIC, and give a key.')

const api = createClient<paths>({ baseUrl: new URL(url).origin, headers: { Authorization: `Bearer ${token}` } })

// Return the data of an answer. Throws the problem that the server named.
function data<T>(answer: { data?: T; error?: { detail: string }; response: Response }): T {
  if (answer.data === undefined) throw new Error(`HTTP ${answer.response.status}: ${answer.error?.detail}`)
  return answer.data
}

// Name the type of each body: openapi-fetch alone does not report a misspelt field that is optional.
const newJob: Schemas['NewJob'] = { topic, key, delay_seconds: 1, body: { order: key } }
const made = data(await api.POST('/api/jobs/', { body: newJob }))
if (!('state' in made)) throw new Error('This is the answer to many jobs.')
console.log(`${made.result} ${made.key} as job ${made.id}`)

// By default a second job with a live key is refused, with status 409.
const { error } = await api.POST('/api/jobs/', { body: newJob })
if (error && 'job_id' in error) console.log(`refused: ${key} is live as job ${error.job_id}`)

const reserve: Schemas['Reserve'] = { wait_seconds: 30 }
const { jobs } = data(
  await api.POST('/api/topics/{topic}/reserve/', { params: { path: { topic } }, body: reserve }),
)
for (const job of jobs) {
  console.log(`reserved ${job.key}, attempt ${job.attempt}`)
  const params = { path: { job_id: job.id } }
  const held: Schemas['Held'] = { attempt: job.attempt }
  const ended = data(await api.POST('/api/jobs/{job_id}/finish/', { params, body: held }))
  const { events } = data(await api.GET('/api/jobs/{job_id}/', { params }))
  console.log(`${ended.state} ${job.key}: ${events.map((event) => event.outcome).join(', ')}`)
}
