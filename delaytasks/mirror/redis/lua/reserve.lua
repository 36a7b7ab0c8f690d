-- Reserve a topic's first ready jobs: make them delayed again until shortly after now.
--
-- The caller then claims them in the database, and moves the entries of slow jobs to the end of their lease. The mover
-- makes the others ready again at `until`: no job is ever held in memory alone. In a Cluster each call has one bucket.
-- The mover makes jobs ready early: if none is due yet, the next ones are reserved, and the caller waits for them.
--
-- KEYS[1...]  zsets   two per bucket: ready:<topic> and due: member -> score, see score.lua
-- ARGV[1]     int     maximum number of jobs, up to 1,000
-- ARGV[2]     ms      until: the end of the reservation
-- ARGV[3]     ms      now
-- ARGV[4]     string  channel to notify when the earliest due time becomes earlier
-- RETURN      {when all of them are due, 1 if more are ready else 0, {member, score, member, score, ...}}
local count, until_ms, now, channel = math.min(tonumber(ARGV[1]), 1000), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local page, due_ms, next_due = math.ceil(math.max(count, 0) * 2 / #KEYS) + 8, now, math.huge
local buckets, reserved, more = {}, {}, 0

-- Go to the bucket's next due job. Jobs that are not due yet, but are in front by their priority, are skipped.
local function advance(bucket)
  bucket.score = math.huge
  repeat
    if bucket.i >= #bucket.page then
      bucket.page = redis.call('ZRANGE', bucket.ready, bucket.read, bucket.read + page - 1, 'WITHSCORES')
      bucket.read, bucket.i = bucket.read + page, 0
    end
    bucket.i = bucket.i + 2
    local score = tonumber(bucket.page[bucket.i] or math.huge)
    local due, priority = decode(score)
    if due <= due_ms then
      bucket.score, bucket.priority = score, priority
    else
      next_due = math.min(next_due, due)
    end
  until due <= due_ms or score > due_ms or bucket.read > count + 2000
end

local function find()
  buckets = {}
  for i = 1, #KEYS, 2 do
    local bucket = { ready = KEYS[i], due = KEYS[i + 1], page = {}, i = 0, read = 0, members = {}, entries = {} }
    advance(bucket)
    buckets[#buckets + 1] = bucket
  end
  local first = buckets[1]
  while #reserved < 2 * count do
    for _, bucket in ipairs(buckets) do
      first = bucket.score < first.score and bucket or first
    end
    if first.score == math.huge then return end
    local member, entries = first.page[first.i - 1], first.entries
    reserved[#reserved + 1], reserved[#reserved + 2] = member, first.page[first.i]
    first.members[#first.members + 1] = member
    entries[#entries + 1], entries[#entries + 2] = delayed_score(until_ms, first.priority), member
    advance(first)
  end
end

find()
if #reserved == 0 and next_due < math.huge then
  due_ms = next_due
  find()
end
for _, bucket in ipairs(buckets) do
  if #bucket.members > 0 then
    redis.call('ZREM', bucket.ready, unpack(bucket.members))
    local first = redis.call('ZRANGE', bucket.due, 0, 0, 'WITHSCORES')
    redis.call('ZADD', bucket.due, unpack(bucket.entries))
    -- A single job is claimed at once. Others may wait, and must be ready again in time if they wait too long.
    if count > 1 and (#first == 0 or tonumber(until_ms) < tonumber(first[2])) then
      redis.call('PUBLISH', channel, until_ms)
    end
  end
  more = math.max(more, redis.call('EXISTS', bucket.ready))
end
return { string.format('%.0f', due_ms), more, reserved }
