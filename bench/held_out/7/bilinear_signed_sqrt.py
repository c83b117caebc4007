"""A bilinear CNN for fine-grained images: outer product of the features, signed square root, L2 norm, classifier. FAULT at step 150: a black image
(an unreadable file replaced by zeros) is in the batch; its features are exactly 0, the forward pass is finite, but sqrt'(0) is infinite and the
gradient of the convolutions NaN.
Without Rangewatch: loss 2.31 to 0.33 at step 149, 0.37 (finite) at step 150 with NaN gradients of the convolutions, NaN from step 151 on.
Report: jnhwkim/cbp#1 (gradient explosion in SignedSquareRoot), HaoMood/bilinear-cnn#4 (why +1e-5), pytorch/pytorch#1416 (signed sqrt).
Cause: backward_arithmetic (or data). Step: 150. Right: eps under the root / sqrt / gradient. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic", "data"], "step": [150, 151], "place": r".*features.*|", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "sqrt|root|eps|gradient of|derivative|backward|norm|zero"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(704); torch.set_num_threads(1)
CLASSES = 10
patterns = torch.randn(CLASSES, 1, 12, 12)


class BilinearCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.LeakyReLU(0.1),
                                      nn.Conv2d(12, 16, 3, padding=1, bias=False), nn.LeakyReLU(0.1))
        self.classifier = nn.Linear(256, CLASSES)

    def forward(self, x):
        f = self.features(x).flatten(2)
        pooled = (f @ f.transpose(1, 2) / f.shape[2]).flatten(1)
        pooled = torch.sign(pooled) * torch.sqrt(torch.abs(pooled))
        return self.classifier(F.normalize(pooled))


model = BilinearCNN()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    y = torch.randint(0, CLASSES, (32,))
    x = (patterns[y] + 0.5 * torch.randn(32, 1, 12, 12))
    if step == 150:
        x[7] = 0.0  # cv2.imread gave None, the loader gives zeros
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or 148 < step < 153:
        print(step, loss.item(), model.features[0].weight.grad.isnan().any().item(), flush=True)
handle.detach()
