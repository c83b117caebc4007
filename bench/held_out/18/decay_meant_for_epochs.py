"""A net sorts letters of complaint by department (bags of words, embedding bag). FAULT from step 0 on: ExponentialLR with 0.85, meant once an epoch of 40
steps, is stepped with each batch: the rate is a hundredth after 28 steps and nothing after a hundred.
Without Rangewatch: loss 1.97 to 1.96 at step 20 and 1.91 at step 239, where the rate is 3e-20; stepped once an epoch it is 0.084 at the end.
Cause: learning_rate. Step: from 0 on, by 140. Right: scheduler / epoch / learning rate. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 140], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)schedul|epoch|learning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1808); torch.set_num_threads(1)
WORDS, DEPARTMENTS = 400, 7
topic = torch.softmax(1.2 * torch.randn(DEPARTMENTS, WORDS), 1)
archive_y = torch.randint(0, DEPARTMENTS, (40 * 32,))
archive_x = torch.multinomial(topic[archive_y], 25, replacement=True)


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 32, mode="mean")
        self.hidden = nn.Linear(32, 32)
        self.department = nn.Linear(32, DEPARTMENTS)

    def forward(self, x):
        return self.department(F.relu(self.hidden(self.words(x))))


model = Sorter()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.85)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(6):
    for batch in torch.randperm(len(archive_y)).split(32):
        loss = F.cross_entropy(model(archive_x[batch]), archive_y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0 or step == 239:
            print(step, loss.item(), "rate", scheduler.get_last_lr()[0], flush=True)
        handle.log(loss=loss.item(), lr=scheduler.get_last_lr()[0])
        step += 1
handle.detach()
