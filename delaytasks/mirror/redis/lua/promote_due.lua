-- Move due jobs from delayed to ready, oldest first, at most one batch. Ready jobs are in the order of score.lua.
--
-- Called by worker/mover.py. Next: reserve.lua, for worker/runner.py or for a consumer over HTTP.
-- "count:topic" is published for each topic, for the waiting consumers (api/notifier.py). A member that is
-- not "id:topic" is set aside, so that it cannot block the batch.
--
-- KEYS[1]  zset    due: member -> score, see score.lua
-- KEYS[2]  set     topics that ever had a ready job in this bucket
-- KEYS[3]  zset    set aside: member -> its score
-- KEYS[4]  hash    counters
-- KEYS[5...]       zsets, ready:<topic> of the known topics, in the order of ARGV[6...]
-- ARGV[1]  ms      now, by the database's clock
-- ARGV[2]  int     maximum number of jobs to move
-- ARGV[3]  string  prefix of the ready zsets' keys, for topics that are not known (same hash tag)
-- ARGV[4]  string  channel of the waiting consumers
-- ARGV[5]  0 or 1  list ready: also name the known topics that had ready jobs before
-- ARGV[6...]       the known topics
-- RETURN   {moved, earliest remaining due ms or -1, set aside, topic, topic, ...}: topics with ready jobs, each once
local due, topics, set_aside, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now, batch, ready_prefix, channel = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local list_ready = tonumber(ARGV[5]) == 1

local ready_of = {}
for i = 6, #ARGV do
  ready_of[ARGV[i]] = KEYS[i - 1]
end

local head = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, batch)
local moves, malformed = {}, {}
for i = 1, #head, 2 do
  local member, score = head[i], head[i + 1]
  local id, topic = string.match(member, '^(%d+):(.+)$')
  local list = malformed
  if topic and #id <= 18 then -- no id has more digits
    moves[topic] = moves[topic] or {}
    list = moves[topic]
    local due_ms, priority = decode(score)
    score = priority > 0 and ready_score(due_ms, priority) or score
  end
  list[#list + 1] = score
  list[#list + 1] = member
end
local moved = #head / 2
if moved > 0 then
  redis.call('ZREMRANGEBYRANK', due, 0, moved - 1)
  redis.call('HINCRBY', counters, 'promoted', moved)
end

local answer = { moved, -1, #malformed / 2 }
if #malformed > 0 then
  redis.call('ZADD', set_aside, unpack(malformed))
  redis.call('ZREMRANGEBYRANK', set_aside, 0, -1001)
  redis.call('HINCRBY', counters, 'set_aside', #malformed / 2)
end
for topic, list in pairs(moves) do
  redis.call('ZADD', ready_of[topic] or (ready_prefix .. topic), unpack(list))
  redis.call('SADD', topics, topic)
  redis.call('PUBLISH', channel, string.format('%d:%s', #list / 2, topic))
  answer[#answer + 1] = topic
end
if list_ready then
  for topic, ready in pairs(ready_of) do
    if not moves[topic] and redis.call('EXISTS', ready) == 1 then
      answer[#answer + 1] = topic
    end
  end
end
local next_due = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
if #next_due > 0 then
  answer[2] = decode(next_due[2])
end
return answer
