"""A small classifier of eight kinds of images, SGD with momentum. FAULT from step 128 on (the fifth epoch): the other loader has no shuffle=True, so that
each batch is of one class, four batches of each in turn: it forgets the others. All stays finite.
Without Rangewatch: loss 2.03 to 0.11 at step 127, 0.32 and down to 0.002 at step 131 (class 0), 0.65 at step 132 (class 1), 2.13 at step 144, 5.61 at
step 160; of all images 0.93 are right after four epochs, 0.30 after five, 0.13 after seven.
Report: Deci-AI/super-gradients#416 (batches of a single class throw the net out of the minimum), pytorch/vision#7818, ultralytics/yolov5#5622.
Cause: data (its order). Step: 128 or some steps later. Right: shuffle / order / labels of the batch. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["data"], "step": [128, 160], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "shuffl|order|batch|data|label|class|sampler"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(620); torch.set_num_threads(1)
CLASSES, EACH, BATCH = 8, 128, 32
kinds = torch.randn(CLASSES, 1, 8, 8)
labels = torch.arange(CLASSES).repeat_interleave(EACH)  # as the files lie on the disk


def load(rows):
    return kinds[labels[rows]] + 2.0 * torch.randn(len(rows), 1, 8, 8)  # augmented anew each time


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.ReLU(),
                                      nn.Flatten())
        self.fc = nn.Linear(24 * 16, CLASSES)

    def forward(self, x):
        return self.fc(self.features(x))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(8):
    # from the fifth epoch on by the other loader, which was made without shuffle=True
    order = torch.randperm(len(labels)) if epoch < 4 else torch.arange(len(labels))
    for rows in order.split(BATCH):
        loss = F.cross_entropy(model(load(rows)), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 16 == 0 or 126 < step < 134:
            print(step, loss.item(), labels[rows].unique().tolist(), flush=True)
        step += 1
    with torch.no_grad():
        print("epoch", epoch, "right", (model(load(torch.arange(len(labels)))).argmax(1) == labels).float().mean().item(), flush=True)
handle.detach()
