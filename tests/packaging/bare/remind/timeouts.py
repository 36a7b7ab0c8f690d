from delaytasks import handler

seen = []


@handler("lesson.remind")
def remind(job):
    seen.append(job.body["lesson"])
