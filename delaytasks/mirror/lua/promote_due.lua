-- Move what is due from delayed to ready, oldest first, at most one batch.
--
-- The other half of mover.py. A member that is no "id:topic" belongs to nobody: it is set aside,
-- so that it blocks no other. What is moved is run by worker.py (reserve.lua takes it from here),
-- or taken over HTTP by a consumer that waits for it: waiting.py hears of each topic by "count:topic".
--
-- KEYS[1]  zset    due: member -> ms
-- KEYS[2]  set     topics that ever had a ready job in this bucket
-- KEYS[3]  zset    set aside: member -> ms when
-- KEYS[4]  hash    counters
-- KEYS[5...]       zsets, ready:<topic> of the known topics, in the order of ARGV[6...]
-- ARGV[1]  ms      now, by the database's clock
-- ARGV[2]  int     batch: how many at most
-- ARGV[3]  string  what the key of a ready zset begins with, for topics that are not known (same hash tag)
-- ARGV[4]  string  channel on which those who wait for ready jobs are told
-- ARGV[5]  0 or 1  look: name the known topics, too, that have ready jobs from before
-- ARGV[6...]       the known topics
-- RETURN   {moved, score of the next head or -1, set aside, topic, topic, ...}: topics with ready jobs, each once
local due, topics, aside, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local now, batch, ready_prefix, channel = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local look = tonumber(ARGV[5]) == 1

local ready_of = {}
for i = 6, #ARGV do
  ready_of[ARGV[i]] = KEYS[i - 1]
end

local found = redis.call('ZRANGEBYSCORE', due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, batch)
local moves, odd = {}, {}
for i = 1, #found, 2 do
  local member, score = found[i], found[i + 1]
  local id, topic = string.match(member, '^(%d+):(.+)$')
  local list = odd
  if topic and #id <= 18 then -- more digits are no id of any database
    moves[topic] = moves[topic] or {}
    list = moves[topic]
  end
  list[#list + 1] = score
  list[#list + 1] = member
end
local moved = #found / 2
if moved > 0 then
  redis.call('ZREMRANGEBYRANK', due, 0, moved - 1)
  redis.call('HINCRBY', counters, 'promoted', moved)
end

local answer = { moved, -1, #odd / 2 }
if #odd > 0 then
  redis.call('ZADD', aside, unpack(odd))
  redis.call('ZREMRANGEBYRANK', aside, 0, -1001)
  redis.call('HINCRBY', counters, 'set_aside', #odd / 2)
end
for topic, list in pairs(moves) do
  redis.call('ZADD', ready_of[topic] or (ready_prefix .. topic), unpack(list))
  redis.call('SADD', topics, topic)
  redis.call('PUBLISH', channel, string.format('%d:%s', #list / 2, topic))
  answer[#answer + 1] = topic
end
if look then
  for topic, ready in pairs(ready_of) do
    if not moves[topic] and redis.call('EXISTS', ready) == 1 then
      answer[#answer + 1] = topic
    end
  end
end
local head = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
if #head > 0 then
  answer[2] = math.floor(tonumber(head[2]))
end
return answer
